"""Waits grow after each failure, up to a limit; Retry-After is a number of seconds or an HTTP date."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchyard.backoff import Backoff, retry_after

POSITIVE = st.floats(0.001, 1e6)
NOON = 1_782_129_600  # Mon, 22 Jun 2026 12:00:00 GMT


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(first=1.0, longest=10.0)
    assert [backoff.seconds(attempt) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_waits_grow_by_the_factor_that_was_set() -> None:
    backoff = Backoff(first=5.0, growth=4.0)
    assert [backoff.seconds(attempt) for attempt in (1, 2, 3)] == [5, 20, 80]


def test_full_jitter_spreads_waits_over_the_whole_range() -> None:
    backoff = Backoff(first=8.0, jitter=(0.0, 1.0))
    waits = [backoff.seconds(1) for _ in range(500)]
    assert 0 <= min(waits) < 1 and 7 < max(waits) <= 8


@given(
    first=POSITIVE,
    growth=st.floats(1.0, 10.0),
    longest=POSITIVE,
    jitter=st.tuples(st.floats(0, 1), st.floats(1, 2)),
    attempt=st.integers(1, 10**9),
)
def test_no_wait_exceeds_the_longest_times_jitter(
    first: float, growth: float, longest: float, jitter: tuple[float, float], attempt: int
) -> None:
    low, high = jitter
    seconds = Backoff(first, growth, longest, jitter).seconds(attempt)
    assert min(first, longest) * low <= seconds * 1.000001
    assert seconds <= longest * high * 1.000001


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
        ("nan", None),
        ("1e3", None),
        ("٣", None),
        ("9" * 400, None),
    ],
)
def test_a_server_says_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOON) == seconds


DATES = st.from_regex(
    r"[A-Z][a-z]{2}, [0-9]{1,3} (Jan|Feb|Foo) [0-9]{1,6} [0-9:]{0,10} (GMT|[+-][0-9]{1,6})?", fullmatch=True
)


@given(header=st.text() | DATES, now=st.floats(0, 1e10))
@example(header="Mon, 22 Jun 2026 12:00:00 +9999", now=0.0)
@example(header="Mon, 22 Jun 0001 12:00:00 GMT", now=0.0)
@example(header="Mon, 22 Jun 99999 12:00:00 GMT", now=0.0)
def test_no_header_raises_or_asks_for_less_than_nothing(header: str, now: float) -> None:
    seconds = retry_after(header, now)
    assert seconds is None or seconds >= 0
