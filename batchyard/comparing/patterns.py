"""Clients' regular expressions. They take linear time and bounded memory (RE2), whatever the pattern and the text."""

from typing import Any

import re2

PATTERN_BYTES = 1024 * 1024
"""Memory of one regular expression. re2 keeps the last 128 of them."""


class InvalidPattern(ValueError):
    """A text is no regular expression of RE2."""


def compiled(pattern: str, *, groups: bool = False) -> Any:
    """Return the regular expression, of RE2, which has no back-references and no look-around."""
    options = re2.Options()
    options.max_mem = PATTERN_BYTES
    options.never_capture = not groups
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidPattern(error.args[0].decode(errors="replace")) from error


def escaped(text: str) -> str:
    return str(re2.escape(text))
