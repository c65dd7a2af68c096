"""What work costs on a measured engine, and how far that may be off."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.speeds import Expected
from tasks.scheduling.costs import Answered, WorkCosts, drain, start_delay, throughput_of
from tasks.scheduling.replay import SegmentCost
from tasks.scheduling.states import Engines
from tests.tasks.scheduling.test_forecast import backlog_entry, throughput

DECODE = {("m", "decode"): throughput(2, tokens=9)}


@given(
    st.integers(1, 10**6), st.floats(0, 1), st.floats(0, 2), st.floats(0, 2), st.integers(1, 10**4), st.integers(0, 500)
)
def test_what_is_expected_lies_in_its_range(
    requests: int, share: float, spread: float, request_spread: float, measurements: int, answers: int
) -> None:
    measured = throughput(
        2, tokens=9, spread=spread, request_spread=request_spread, measurements=measurements, requests=measurements,
        in_flight=8.0, limit=16.0, lead=Expected(5.0, 2.0),
    )  # fmt: skip
    entry = backlog_entry(requests, answered=int(share * requests), active=True)
    costs = WorkCosts([entry], {"mine": Answered(answers, 9 * answers)}, {("m", "decode"): measured})
    cost = costs.of(entry)
    assert cost is not None
    span = costs.range(entry, cost)
    assert 0 <= span.least <= span.seconds == sum(cost) <= span.most


def test_a_batchs_answers_weigh_more_than_other_batches_the_more_there_are() -> None:
    entry = backlog_entry(1000)
    seconds = []
    for answers in (0, 10, 1000, 10**6):
        cost = WorkCosts([entry], {"mine": Answered(answers, 19 * answers)}, DECODE).of(entry)
        assert cost is not None
        seconds.append(cost.work)
    assert seconds[0] == pytest.approx(500) and seconds == sorted(seconds)
    assert seconds[-1] == pytest.approx(1000, rel=0.01), "twice the work of a usual request"


def test_a_model_that_was_measured_with_other_requests_is_as_fast_and_one_never_measured_has_no_cost() -> None:
    assert throughput_of("m", "prefill", DECODE) is DECODE["m", "decode"]
    entries = [backlog_entry(10, kind="prefill", size=50), backlog_entry(10, model="n")]
    prefill, unmeasured = map(WorkCosts(entries, {}, DECODE).of, entries)
    assert prefill == SegmentCost(0, pytest.approx(2.5)), "half as many bytes are half of the work"
    assert unmeasured is None


def test_a_cold_engine_is_waited_for_as_long_as_it_usually_takes_less_what_has_passed() -> None:
    measured = throughput(1, start=Expected(60.0, 5.0))
    cold = Engines(frozenset(), {"m": 970.0})
    assert start_delay("m", measured, cold, 1000.0) == Expected(30.0, 5.0)
    assert start_delay("m", measured, cold, 2000.0) == Expected(0.0, 5.0)
    assert start_delay("m", measured, Engines(frozenset({"m"}), {}), 1000.0) == Expected(0.0, 0.0)
    assert start_delay("m", throughput(1), cold, 1000.0) == Expected(0.0, 0.0)


def test_what_is_long_after_all_else_is_done_is_in_the_range() -> None:
    """The engine has 100 requests at once, of ten seconds each on average. At last it has the longest ones only."""
    even = throughput(10, in_flight=100.0, limit=100.0)
    assert drain(even, 1000) == Expected(0, 0), "all requests have one length"
    uneven = replace(even, request_spread=1.0)
    expected = drain(uneven, 1000)
    chance, sigma = random.Random(1), math.sqrt(math.log(2))
    longest = [10 * max(chance.lognormvariate(-(sigma**2) / 2, sigma) for _ in range(100)) for _ in range(50)]
    assert 0 < expected.seconds < statistics.fmean(longest) - 10 < 2.5 * expected.seconds
    assert drain(uneven, 4).seconds < expected.seconds, "of a few requests none is so long"
    assert drain(uneven, 1).seconds == 0
