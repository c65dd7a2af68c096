"""Prompts and answers as people read them, on the pages of a request and of a job's item."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from batchyard import json_lines
from batchyard.endpoints import responses
from batchyard.endpoints.forms import Checks
from batchyard.wording import PLAN_SHARES
from store.formats.results import ResultRow
from webapp.pages.formats import figure, size

PROMPTS = ("file_url", "prompt", "input")
IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+=*")
"""An image that is shown: it runs nothing, and a browser gets it from no other place."""
CHECK_SECONDS = 0.02
"""CPU time to check whether an answer has the form that was asked for."""
SOUND = re.compile(r"data:audio/[a-z0-9.+-]{1,40};base64,[A-Za-z0-9+/]+=*")
MAX_SHOWN, MAX_LISTED = 2 * 1024 * 1024, 64 * 1024
"""The longest URL of an image or audio that is shown: on a page of its own, and in a list."""


class Passage(NamedTuple):
    """What somebody said in a conversation, or a column's value. `images` and `sounds` are data URLs."""

    name: str
    text: str
    images: Sequence[str] = ()
    sounds: Sequence[str] = ()


class ShownAnswer(NamedTuple):
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


def passage(name: str, value: Any, *, listed: bool = False) -> Passage:
    """Return a value with its images and sounds apart: parts of a message, or one or several; else as `text_of`."""
    most = MAX_LISTED if listed else MAX_SHOWN
    shown = [_part(part, most) for part in (value if isinstance(value, list) else [value])]
    if not shown or None in shown:
        return Passage(name, text_of(value))
    images, sounds = ([url for part in shown if part for url in part[field]] for field in (2, 3))
    return Passage(name, "\n".join(part.text for part in shown if part and part.text), images, sounds)


def _part(part: Any, most: int) -> Passage | None:
    """Return a text or an image of a message, or an image or a sound in a cell; None for anything else."""
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return Passage("", part["text"])
    if isinstance(part, dict) and part.get("type") == "image_url" and isinstance(part.get("image_url"), dict):
        part = part["image_url"].get("url")
        if isinstance(part, str) and part.startswith(("http://", "https://")):
            return Passage("", f"[image {part}]")
    kind = part[len("data:") :].partition("/")[0] if isinstance(part, str) and part.startswith("data:") else None
    if kind not in ("image", "audio"):
        return None
    if len(part) <= most and IMAGE.fullmatch(part):
        return Passage("", "", [part])
    if len(part) <= most and SOUND.fullmatch(part):
        return Passage("", "", (), [part])
    return Passage("", f"[{kind} of {size(len(part) * 3 / 4)}: {part.partition(',')[0][:40]}]")


def prompt(body: Mapping[str, Any], *, listed: bool = False) -> list[Passage]:
    """Return the messages of a request, or its prompt or input. `listed`: large images are only named."""
    messages = body.get("messages")
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        return [passage for message in messages for passage in _passages(message, listed)]
    audio = [passage("audio", body["file_url"], listed=listed)] if "file_url" in body else []
    return audio + [Passage("", text_of(body[name])) for name in PROMPTS[1:] if name in body]


def _passages(message: Mapping[str, Any], listed: bool) -> list[Passage]:
    role, content = str(message.get("role", "")), message.get("content")
    passages = [passage(role, content, listed=listed)] if content is not None else []
    calls = message.get("tool_calls")
    return passages + ([Passage(f"{role} calls", text_of(calls))] if calls else []) or [Passage(role, "")]


def parameters(body: Mapping[str, Any]) -> dict[str, str]:
    """Return what a request says beside its prompt and its model."""
    return {name: text_of(value) for name, value in body.items() if name not in ("messages", "model", *PROMPTS)}


def choices(response: Any) -> list[ShownAnswer]:
    """Return the answers in a response; its JSON as the one text if it has none for people."""
    shown = []
    for output in responses.outputs(response):
        parts = [text_of(part) for part in (output.text, output.refusal, output.tool_calls) if part]
        if not parts and output.no_text is not None:
            parts = [output.no_text.message]
        shown.append(ShownAnswer("\n".join(parts), output.reasoning or "", output.finish_reason))
    return shown or [ShownAnswer(text_of(response), "", None)]


def flaws(row: ResultRow) -> list[str]:
    """Return what is wrong with an answer, in words."""
    if row.status_code != 200:
        return []
    names = responses.flaws(row.response)
    request, line = (json_lines.line(part).decode() for part in (row.body, {"response": {"body": row.response}}))
    with suppress(TimeoutError):
        names += ["invalid"] if Checks(CHECK_SECONDS).is_invalid(request, line) else []
    return [PLAN_SHARES[name] for name in names]
