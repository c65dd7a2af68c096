"""Answers as they were expected: numbers by value, other texts stripped, JSON by its values."""

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.comparing import numbers
from batchyard.comparing.patterns import compiled

PLAIN_DIGITS = 20
"""Numbers with more zeros than that are written with an exponent."""


def shortest(number: Decimal) -> str:
    """Return one text for all numbers of this value, as people write it: 950 for 950.0 and 9.5E+2."""
    if not number:
        return "0"
    context = Context(prec=len(number.as_tuple().digits), Emin=MIN_EMIN, Emax=MAX_EMAX)
    normal = number.normalize(context)
    return f"{normal:f}" if abs(normal.adjusted()) < PLAIN_DIGITS else str(normal)


def comparable(value: Any) -> str:
    """Return one text for all values that are the same answer: numbers of one value, other texts stripped.

    What is no text is written as JSON: `true` and `95`, also for the float 95.0.
    """
    text = value if isinstance(value, str) else json_lines.dumps(value, str, orjson.OPT_SORT_KEYS).decode()
    number = numbers.whole(text)
    return text.strip() if number is None else shortest(number)


def equal(one: Any, other: Any) -> bool:
    """Return True for equal values: numbers by value, texts without blanks around them, lists in their order."""
    if isinstance(one, str) and isinstance(other, str):
        return one.strip() == other.strip()
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def same(answer: str, truth: Any) -> bool:
    """Return True if an answer is the ground truth, a text or any value of JSON."""
    if isinstance(truth, list | dict):
        try:
            return equal(json_lines.loads(answer), truth)
        except orjson.JSONDecodeError:
            return False
    if truth is None or isinstance(truth, bool):
        return comparable(answer).lower() == comparable(truth)
    return comparable(answer) == comparable(truth)


def matches(method: str, answer: str, expected: Any) -> bool:
    """Return True if the answer is as expected. Raises InvalidPattern if the expected text is none."""
    if method == "exact":
        return same(answer, expected)
    expected = expected if isinstance(expected, str) else comparable(expected)
    if method == "numeric":
        value = numbers.last(expected)
        return value is not None and numbers.last(answer) == value
    return compiled(expected).search(answer) is not None
