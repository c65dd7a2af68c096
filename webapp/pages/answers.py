"""Prompts and answers as people read them, on the pages of a request and of a job's item."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchyard.endpoints import responses
from batchyard.endpoints.responses import Output
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


def choices(response: Any) -> list[ShownAnswer]:
    """Return the answers in a response; its JSON as the one text if it has none for people."""
    outputs = responses.outputs(response)
    return [_shown(output) for output in outputs] or [ShownAnswer(text_of(response), "", None)]


def _shown(output: Output) -> ShownAnswer:
    parts = [text_of(part) for part in (output.text, output.refusal, output.tool_calls) if part]
    if not parts and output.no_text is not None:
        parts = [output.no_text.message]
    return ShownAnswer("\n".join(parts), output.reasoning or "", output.finish_reason)
