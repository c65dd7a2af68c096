"""Prompts and answers as people read them, on the pages of a request and of a job's item."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from webapp.pages.formats import figure

PROMPTS = ("prompt", "input")
"""Where a body without messages has its prompt."""


class Passage(NamedTuple):
    """A text of a conversation with the role of who said it, or of a row with its column's name."""

    name: str
    text: str


class ShownAnswer(NamedTuple):
    """One of the answers in a response."""

    text: str
    thinking: str
    finish_reason: str | None


def text_of(value: Any) -> str:
    """Return a text as it is, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def value_of(value: Any) -> str:
    """Return a value of a score or of a result for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return figure(value) if isinstance(value, int | float) else text_of(value)


def prompt(body: Mapping[str, Any]) -> list[Passage]:
    """Return the messages of a request, or its prompt or input."""
    messages = body.get("messages")
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        return [passage for message in messages for passage in _passages(message)]
    return [Passage("", text_of(body[name])) for name in PROMPTS if name in body]


def _passages(message: Mapping[str, Any]) -> list[Passage]:
    role = str(message.get("role", ""))
    passages = [Passage(role, text_of(message.get("content")))] if message.get("content") is not None else []
    calls = message.get("tool_calls")
    return passages + ([Passage(f"{role} calls", text_of(calls))] if calls else []) or [Passage(role, "")]


def parameters(body: Mapping[str, Any]) -> dict[str, str]:
    """Return what a request says beside its prompt and its model."""
    return {name: text_of(value) for name, value in body.items() if name not in ("messages", "model", *PROMPTS)}


def choices(response: Mapping[str, Any]) -> list[ShownAnswer]:
    """Return the answers in a response; its JSON as the one text if it has no choices."""
    entries = response.get("choices")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        return [ShownAnswer(text_of(response), "", None)]
    return [_choice(entry) for entry in entries]


def _choice(entry: Mapping[str, Any]) -> ShownAnswer:
    message = entry.get("message")
    message = message if isinstance(message, dict) else {"content": entry.get("text")}
    parts = [text_of(part) for part in (message.get("content"), message.get("tool_calls")) if part]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return ShownAnswer("\n".join(parts), text_of(reasoning) if reasoning else "", entry.get("finish_reason"))
