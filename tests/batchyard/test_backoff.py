"""Waits grow after each failure, up to a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchyard.backoff import Backoff

POSITIVE = st.floats(0.001, 1e6)


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
