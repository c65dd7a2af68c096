"""Lines: a request file's JSON objects, and why a line is not a valid request."""

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.json_lines import MAX_LINE_BYTES
from batchyard.tables import formats
from batchyard.tables.json_text import not_a_number
from batchyard.wording import quoted

ESCAPED_COLON = re.compile(rb"\\u003a", re.IGNORECASE)
REFUSED = "refused"
"""Key of a line in place of a request that could not be made, with `code`, `message` and `param`."""


@dataclass(unsafe_hash=True)  # not frozen: a context manager that it leaves sets its traceback
class LineError(Exception):
    """Why a line is not a valid request."""

    code: str
    message: str
    param: str | None = None


def parse(number: int, raw: bytes, max_bytes: int = MAX_LINE_BYTES) -> dict[str, Any]:
    return parse_with_body(number, raw, max_bytes)[0]


def parse_with_body(number: int, raw: bytes, max_bytes: int = MAX_LINE_BYTES) -> tuple[dict[str, Any], bytes]:
    """Return a line's JSON object, and its body as JSON without blanks. Raises LineError."""
    if len(raw) > max_bytes:
        message = f"The line is longer than {max_bytes} bytes; shorten it, or raise BATCHYARD_MAX_LINE_BYTES."
        raise LineError("line_too_long", message)
    if number == 1 and (encoding := json_lines.other_encoding(raw)):
        raise LineError(
            "invalid_json_line", f"The byte order mark (BOM) says that the file is {encoding}; save it as UTF-8."
        )
    if number == 1 and (compression := formats.compression_by_content(raw)):
        remedy = "send it decompressed, or the file to POST /start, which takes .jsonl.gz, .jsonl.zst and .jsonl.bz2"
        raise LineError("invalid_json_line", f"This is {compression} data; {remedy}.")
    raw = json_lines.without_mark(raw)
    try:
        request = json_lines.loads(raw)
    except orjson.JSONDecodeError as error:
        if constant := not_a_number(raw):
            raise LineError("invalid_json_line", f"The line has {constant}.") from None
        reason = error.msg if raw.isascii() else _encoding_error(raw) or error.msg
        if b"\r" in raw.rstrip():
            reason += "; a line ends with a line feed, a carriage return alone does not end it"
        raise LineError("invalid_json_line", f"The line is not valid JSON: {reason}.") from None
    if not isinstance(request, dict):
        raise LineError("invalid_json_line", "The line is valid JSON but not an object.")
    try:
        envelope = json_lines.dumps({name: None if name == "body" else value for name, value in request.items()})
        # The list stands for the line's object, so that the nesting limit applies to the whole line.
        body = json_lines.dumps([request.get("body")])[1:-1]
        # The parser keeps the last value of a repeated key, so its result has fewer colons than the line. Counting them
        # costs a fraction of parsing again. If the line escapes a colon, the count proves nothing.
        if envelope.count(b":") + body.count(b":") != raw.count(b":") or ESCAPED_COLON.search(raw):
            json.loads(raw, object_pairs_hook=_refuse_repeated, parse_int=float)
    except (orjson.JSONEncodeError, RecursionError):
        raise LineError("invalid_json_line", "The line is nested more than 254 levels deep.") from None
    return request, body


def custom_id(raw: bytes) -> str | None:
    """Return the custom_id of a line that is no valid request, None if it cannot be read."""
    try:
        request = json.loads(raw)
        name = request.get("custom_id")
        return name if isinstance(name, str) and name.encode() else None
    except (ValueError, AttributeError, RecursionError):
        return None


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise LineError("invalid_json_line", f"The key {quoted(name)} is repeated in one object.")
        names.add(name)


def _encoding_error(raw: bytes) -> str | None:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is not UTF-8; save the file as UTF-8"
    return None
