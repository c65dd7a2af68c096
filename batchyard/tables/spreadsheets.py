"""Cells of csv files that people open in spreadsheets."""

from __future__ import annotations

import re

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?[0-9.,]*[0-9][0-9.,]*([eE][+-]?[0-9]+)?%?", re.ASCII)


def harmless(value: object) -> object:
    """Return a cell that no spreadsheet runs as a formula: a text that might be one begins with an apostrophe.

    Numbers stay as they are, also as texts: a spreadsheet computes nothing from them.
    """
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
