"""Lines: a request file's JSON objects by their physical line number, and what is wrong with a line that is none."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson

from batchyard.wording import quoted
from store.formats.lines import MAX_LINE_BYTES

ESCAPED_COLON = re.compile(rb"\\u003a", re.IGNORECASE)


@dataclass(frozen=True)
class LineError(Exception):
    """What is wrong with one line."""

    code: str
    message: str
    param: str | None = None


def parse(number: int, raw: bytes) -> dict[str, Any]:
    """A line's JSON object. Raises LineError."""
    if len(raw) > MAX_LINE_BYTES:
        raise LineError("invalid_json_line", f"The line is longer than {MAX_LINE_BYTES} bytes.")
    if number == 1 and raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise LineError(
            "invalid_json_line", "The file starts with a byte order mark (BOM); save it as UTF-8 without one."
        )
    try:
        parsed = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        reason = error.msg if raw.isascii() else _encoding_error(raw) or error.msg
        if b"\r" in raw.rstrip():
            reason += "; a line ends with a line feed, a carriage return alone does not end it"
        raise LineError("invalid_json_line", f"The line is not valid JSON: {reason}.") from None
    if not isinstance(parsed, dict):
        raise LineError("invalid_json_line", "The line is valid JSON but not an object.")
    _refuse_repeated_keys(raw, parsed)
    return parsed


def _refuse_repeated_keys(raw: bytes, parsed: dict[str, Any]) -> None:
    """Raises LineError where a key repeats in one object, which the parser takes no notice of.

    Of a repeated key's values only the last is left, so that what was parsed has fewer colons than the line; that tells
    at a fraction of what parsing again costs. Where a colon is written as an escape the count says nothing.
    """
    try:
        left = orjson.dumps(parsed).count(b":")
        if left != raw.count(b":") or ESCAPED_COLON.search(raw):
            json.loads(raw, object_pairs_hook=_object, parse_int=float)
    except (orjson.JSONEncodeError, RecursionError):
        raise LineError("invalid_json_line", "The line is nested more than 254 levels deep.") from None


def _object(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise LineError("invalid_json_line", f"The key {quoted(key)} is repeated in one object.")
        seen.add(key)


def _encoding_error(raw: bytes) -> str | None:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is not UTF-8"
    return None
