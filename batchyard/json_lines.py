"""Lines of JSON: one line for each value, whichever way a reader finds the ends of lines.

Python's `str.splitlines` and editors take U+0085, U+2028 and U+2029 for ends of lines. JSON allows them in texts, so
what is written for people has them as escapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

_ESCAPES = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "\x85\u2028\u2029")


def line(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return a value as a line, its line feed included.

    Args:
        default: makes a value of what is none of JSON's; without it that raises TypeError.
    """
    return escaped(orjson.dumps(value, default, option=orjson.OPT_APPEND_NEWLINE))


def escaped(json: bytes) -> bytes:
    """Return a JSON text without characters other than line feeds that may end a line."""
    for character, escape in _ESCAPES:
        json = json.replace(character, escape)
    return json
