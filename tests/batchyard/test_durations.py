"""Durations as people read them."""

from __future__ import annotations

import pytest

from batchyard import durations


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.00042, "0.42 ms"),
        (0.0853, "85 ms"),
        (0.0996, "0.1 s"),
        (0.2041, "0.2 s"),
        (1.24, "1.2 s"),
        (9.97, "10 s"),
        (59.7, "1 min"),
        (200.0, "3 min 20 s"),
    ],
)
def test_the_seconds_of_a_request_have_two_digits(seconds: float, text: str) -> None:
    assert durations.brief(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (600, "10 minutes"),
        (604800, "7 days"),
        (3600, "1 hour"),
        (5400, "90 minutes"),
        (1, "1 second"),
        (0, "0 seconds"),
    ],
)
def test_a_limit_is_written_out_in_the_largest_unit_that_fits(seconds: int, words: str) -> None:
    assert durations.words(seconds) == words
