"""Cells of csv files that people open in spreadsheets."""

import re

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
MAX_NUMBER = 64
"""Characters of the longest number that is taken for one: the time of the pattern grows with their square."""
_NUMBER = re.compile(r"[+-]?[0-9.,]*[0-9][0-9.,]*([eE][+-]?[0-9]+)?%?", re.ASCII)


def harmless(value: object) -> object:
    """Return a cell that no spreadsheet runs as a formula: a text that might be one begins with an apostrophe.

    Numbers stay as they are, also as texts: a spreadsheet computes nothing from them.
    """
    if not isinstance(value, str) or not value.lstrip(" ").startswith(_FORMULA):
        return value
    return value if len(value) <= MAX_NUMBER and _NUMBER.fullmatch(value) else f"'{value}"
