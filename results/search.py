"""Search: which requests or answers contain a text."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from batchyard import json_lines
from batchyard.endpoints import responses
from batchyard.endpoints.catalog import ENDPOINTS
from store.formats.results import readable

SEARCH_BYTES = 16 * 1024 * 1024
"""Most bytes that one search reads, in about 0.05 s; the next page goes on. A parsed line counts PARSED times."""
PARSED = 8
_TEXTS = {
    *("messages", "content", "text", "message", "error", "reasoning_content", "reasoning", "document", "label"),
    *(key for entry in ENDPOINTS.values() for key in (*entry.content, *entry.leading)),
    *responses.RESULTS,
}
"""Keys of a request or a response below which texts are searched."""


class Raw(NamedTuple):
    """A request's line and its answer's line as JSON, empty if there is none, and its seconds in the engine."""

    request: bytes
    answer: bytes
    seconds: float | None


def search_for(text: str) -> Callable[[Raw], tuple[bool, int]] | None:
    """Return a function that says whether the texts of a request or its answer contain `text`, and what that cost.

    Only lines that contain the text as JSON are parsed. Case is ignored; in that first look in ASCII only.
    """
    if not text:
        return None
    as_written = json_lines.dumps(text)
    written = (as_written, json_lines.escaped(as_written), json.dumps(text).encode())
    forms = {form[1:-1].lower() for form in written}
    wanted = text.casefold()

    def matches(raw: Raw) -> tuple[bool, int]:
        size = len(raw.request) + len(raw.answer)
        request, answer = raw.request.lower(), raw.answer.lower()
        if not any(form in request or form in answer for form in forms):
            return False, size
        line = json_lines.loads(raw.answer) if raw.answer else {}
        values = [readable(raw.request)[1], (line.get("response") or {}).get("body"), line.get("error")]
        return any(wanted in said.casefold() for said in _texts(values)), PARSED * size

    return matches


def _texts(values: Sequence[Any]) -> Iterator[str]:
    pending = list(values)  # no recursion: clients nest as deep as they like
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            pending += [value[key] for key in _TEXTS & value.keys()]
