"""Lines of JSON: one line for each value, whichever way a reader finds the ends of lines.

Python's `str.splitlines` and editors take U+0085, U+2028 and U+2029 for ends of lines. JSON allows them in texts, so
what is written for people has them as escapes. Windows tools begin UTF-8 with a byte order mark, which is skipped
before any line: files that were joined have it inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

MAX_LINE_BYTES = 16 * 1024 * 1024
_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = {  # the longer ones first: UTF-32 begins as UTF-16 does
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_ESCAPES = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "\x85\u2028\u2029")


def read(raw: bytes) -> Any:
    """Return the value of a line. Raises orjson.JSONDecodeError if it has none."""
    return orjson.loads(without_mark(raw))


def without_mark(raw: bytes) -> bytes:
    """Return a line without the byte order mark of UTF-8 that it may begin with."""
    return raw.removeprefix(_MARK)


def is_blank(raw: bytes) -> bool:
    """True if a line holds nothing but blanks, and maybe a byte order mark."""
    return not without_mark(raw).strip()


def other_encoding(raw: bytes) -> str | None:
    """Return the encoding that a file's first bytes name, such as "UTF-16"; None if it may be UTF-8."""
    return next((name for mark, name in _OTHER_MARKS.items() if raw.startswith(mark)), None)


def line(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return a value as a line, its line feed included.

    Args:
        default: makes a value of what is none of JSON's; without it that raises TypeError.
    """
    return escaped(orjson.dumps(value, default, option=orjson.OPT_APPEND_NEWLINE))


def escaped(json: bytes) -> bytes:
    """Return a JSON text without characters other than line feeds that may end a line."""
    if json.isascii():  # a search for each character takes as long as the rest of an answer
        return json
    for character, escape in _ESCAPES:
        json = json.replace(character, escape)
    return json
