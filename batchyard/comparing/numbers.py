"""Numbers as people and models write them: signs of all kinds, thousands separators, powers of ten."""

import re
from decimal import Decimal, InvalidOperation

_MINUS = "-\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d"
"""Hyphen, minus, other hyphens, figure dash, en dash, small and full-width hyphen."""
_SEPARATORS = ",\u00a0\u2009\u202f"
"""Between thousands: a comma, or a space at which no line breaks."""
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_SIGNS = str.maketrans(dict.fromkeys(_MINUS, "-"))
_THOUSANDS = rf"(?<!\d[{_SEPARATORS}])\d{{1,3}}(?P<mark>[{_SEPARATORS}])\d{{3}}(?:(?P=mark)\d{{3}})*(?!\d|(?P=mark)\d)"
_POWER = rf"\s*(?:[\u00d7x*\u00b7]|\\times|\\cdot)\s*10(?:(?:\^|\*\*)\s*\{{?\s*(?P<power>[+{_MINUS}]?\d+)"
_NUMBER = re.compile(
    rf"""
    (?:(?<![\w)\]}}%.])(?P<sign>[+{_MINUS}]))?                # in `3-4`, `F-16` and dates it is no sign
    (?:[$€£¥]\ ?(?P<inner>[+{_MINUS}])?)?
    (?P<digits>
        {_THOUSANDS}(?:\.\d+)?
        | (?<!\d\.)\d+\.\d+(?!\.?\d)                          # a date or a version has several points
        | \d+
        | (?<!\d)\.\d+
    )
    (?:[eE](?P<exponent>[+{_MINUS}]?\d+) | {_POWER}\s*\}}?|(?P<raised>[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)))?
    """,
    re.VERBOSE,
)


def last(text: str) -> Decimal | None:
    """Return the value of the last number in a text; None without a number."""
    value = None
    for match in _NUMBER.finditer(text):
        value = match
    return None if value is None else _value(value)


def whole(text: str) -> Decimal | None:
    """Return the value of a text that is a number and nothing else but a full stop; None for others."""
    match = _NUMBER.fullmatch(text.strip().removesuffix("."))
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> Decimal | None:
    digits = "".join(character for character in match["digits"] if character not in _SEPARATORS)
    sign = match["sign"] or match["inner"] or ""
    exponent = match["exponent"] or match["power"] or (match["raised"] or "0").translate(_RAISED)
    try:
        return Decimal(f"{sign}{digits}E{exponent}".translate(_SIGNS))
    except InvalidOperation:
        return None
