"""Retry-After is a number of seconds or an HTTP date; anything else says nothing."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchyard import retry_after

NOON = 1_782_129_600  # Mon, 22 Jun 2026 12:00:00 GMT


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 1.5 ", 1.5),
        ("Mon, 22 Jun 2026 12:01:30 GMT", 90),
        ("Mon, 22 Jun 2026 11:59:00 GMT", 0),
        (None, None),
        ("", None),
        ("-5", None),
        ("soon", None),
        ("1e3", None),
        ("٣", None),
        ("9" * 400, None),
    ],
)
def test_seconds_and_dates_are_read(header: str | None, seconds: float | None) -> None:
    assert retry_after.seconds(header, NOON) == seconds


DATES = st.from_regex(
    r"[A-Z][a-z]{2}, [0-9]{1,3} (Jan|Feb|Foo) [0-9]{1,6} [0-9:]{0,10} (GMT|[+-][0-9]{1,6})?", fullmatch=True
)


@given(header=st.text() | DATES, now=st.floats(0, 1e10))
@example(header="Mon, 22 Jun 2026 12:00:00 +9999", now=0.0)
@example(header="Mon, 22 Jun 0001 12:00:00 GMT", now=0.0)
@example(header="Mon, 22 Jun 99999 12:00:00 GMT", now=0.0)
def test_no_text_raises_or_asks_for_less_than_nothing(header: str, now: float) -> None:
    seconds = retry_after.seconds(header, now)
    assert seconds is None or seconds >= 0
