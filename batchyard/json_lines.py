"""JSON with integers of any size, and lines of it: one for each value, however a reader finds the ends of lines.

orjson reads an integer of more than 64 bits as a float, which changes an amount in wei or a device's id without a word,
and does not write it. `loads` and `dumps` are orjson's but for these.

Python's `str.splitlines` and editors take U+0085, U+2028 and U+2029 for ends of lines. JSON allows them in texts, so
what is written for people has them as escapes. Windows tools begin UTF-8 with a byte order mark, which is skipped
before any line: files that were joined have it inside.
"""

import json
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
LONG = 19
"""Digits of the shortest integer that has more than 64 bits, -9223372036854775809."""
_DIGITS = bytes(48 if chr(byte) in "0123456789" else 46 if byte == 46 else 32 for byte in range(256))
"""A table for `translate`: all digits become 0, all but points blanks."""
_RUN = b"0" * LONG
_64_BITS = range(-(2**63), 2**64)
_ESCAPES = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "\x85\u2028\u2029")


def loads(raw: bytes | bytearray | str) -> Any:
    """Return the value of a JSON text.

    Raises orjson.JSONDecodeError: it is no JSON, or has an integer of more than 308 digits.
    """
    value = orjson.loads(raw)
    text = raw.encode() if isinstance(raw, str) else bytes(raw)
    # Two of so many digits stand nine apart, wherever they begin: most texts need not be looked at as a whole.
    if b"00" not in text[:: LONG // 2].translate(_DIGITS) or not _has_long_integer(text):
        return value
    try:
        return json.loads(text)
    except RecursionError:
        raise orjson.JSONDecodeError("it is nested too deep", text.decode(), 0) from None


def dumps(value: Any, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
    """Return a value as JSON; the arguments are those of orjson.dumps."""
    try:
        return orjson.dumps(value, default, option)
    except TypeError as error:
        if "64-bit" not in str(error):
            raise
        return orjson.dumps(_with_fragments(value), default, option)


def read(raw: bytes) -> Any:
    """Return the value of a line. Raises orjson.JSONDecodeError if it has none."""
    return loads(without_mark(raw))


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

    `default`: makes a value of what is none of JSON's; without it that raises TypeError.
    """
    return escaped(dumps(value, default, orjson.OPT_APPEND_NEWLINE))


def escaped(json: bytes) -> bytes:
    """Return a JSON text without characters other than line feeds that may end a line."""
    if json.isascii():  # a search for each character takes as long as the rest of an answer
        return json
    for character, escape in _ESCAPES:
        json = json.replace(character, escape)
    return json


def _has_long_integer(text: bytes) -> bool:
    zeros = text.translate(_DIGITS)
    if _RUN not in zeros:
        return False
    first, *others = zeros.split(b".")  # digits behind a point are no integer's
    return _RUN in first or any(_RUN in part.lstrip(b"0") for part in others)


def _with_fragments(value: Any) -> Any:
    """Return a value with the integers that orjson does not write as texts of JSON."""
    if isinstance(value, dict):
        return {name: _with_fragments(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_fragments(one) for one in value]
    return orjson.Fragment(str(value)) if isinstance(value, int) and value not in _64_BITS else value
