"""Numbers in texts have the value that people read there."""

from __future__ import annotations

import pytest

from batchyard.comparing import numbers
from batchyard.comparing.values import shortest


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("between 3 and -4.50", "-4.5"),
        ("1,000,000 in all", "1000000"),
        ("It is 1,234.50 in all.", "1234.5"),
        ("The primes are 2,3,5", "5"),
        ("2,3,5,700", "700"),
        ("12345,678", "678"),
        ("1,2345", "2345"),
        ("1\u202f234\u202f567,", "1234567"),
        ("The result is \u22123", "-3"),
        ("(\u2013 2) or \u20132", "-2"),
        ("about 3-4", "4"),
        ("about 3\u20134", "4"),
        ("on 2026-11-25", "25"),
        ("on 25.11.2026", "2026"),
        ("version 1.2.3", "3"),
        ("an F-16", "16"),
        ("x = -3", "-3"),
        (r"\boxed{-3}", "-3"),
        ("#### -3.", "-3"),
        ("-$1,250.00 in all", "-1250"),
        ("\u20ac-5", "-5"),
        ("12.5%", "12.5"),
        ("about 9.5E+2", "950"),
        ("1e\u22123", "0.001"),
        ("1.5 \u00d7 10^3", "1500"),
        ("1.5\u00d710\u207b\u00b2", "0.015"),
        (r"$2 \times 10^{-3}$", "0.002"),
        ("+7", "7"),
        (".5", "0.5"),
        ("0.000", "0"),
        ("1e30", "1E+30"),
        ("1e99999999999999999999", None),
        ("no number", None),
    ],
)
def test_the_last_number_of_a_text_is_written_in_one_way(text: str, number: str | None) -> None:
    value = numbers.last(text)
    assert (None if value is None else shortest(value)) == number


@pytest.mark.parametrize(
    ("text", "number"), [("1,234", "1234"), (" \u22123 ", "-3"), ("2,3,5", None), ("3-4", None), ("3 apples", None)]
)
def test_a_text_is_a_number_only_as_a_whole(text: str, number: str | None) -> None:
    value = numbers.whole(text)
    assert (None if value is None else shortest(value)) == number
