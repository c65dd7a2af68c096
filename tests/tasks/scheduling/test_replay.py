"""Replay of segments in simulated time: when each ends, given the engines and what runs already."""

from __future__ import annotations

import math

import pytest

from store.segments import PendingSegment
from tasks.scheduling.policy import Limits, RecentUsage, SegmentPolicy
from tasks.scheduling.replay import Replay, SegmentCost


def segment(number: int, model: str = "a", unanswered: float = math.inf) -> PendingSegment:
    return PendingSegment(False, 100 + number, f"batch{number}", 0, number, model, "p", unanswered)


def replay(total: int = 8, now: float = 1000.0, engines: int = 1, **models: int) -> Replay:
    limits = Limits(total, models={"a": 8, "b": 8} | models, min_share=0.0, engines={"a": 3})
    return Replay(SegmentPolicy(limits, RecentUsage({}, now)), now, capacity=engines)


def ends(of: Replay, until: float = math.inf) -> list[tuple[float, int]]:
    return [(at, ended.segment_id) for at, ended in of.run(until)]


def test_a_segment_ends_after_its_lead_and_its_work() -> None:
    alone = replay()
    alone.submit(segment(1), SegmentCost(lead=5.0, work=20.0))
    assert ends(alone) == [(1025.0, 1)]


def test_with_one_slot_the_next_segment_begins_when_the_first_has_ended() -> None:
    line = replay(total=1)
    for number in (2, 1):
        line.submit(segment(number), SegmentCost(5.0, 20.0))
    assert ends(line) == [(1025.0, 1), (1050.0, 2)], "the one that is due first begins"


def test_leads_pass_side_by_side_but_an_engine_works_on_one_segment_at_a_time() -> None:
    both = replay()
    for number in (1, 2):
        both.submit(segment(number), SegmentCost(5.0, 20.0))
    assert ends(both) == [(1025.0, 1), (1045.0, 2)]


def test_models_have_engines_of_their_own_and_two_engines_work_at_once() -> None:
    models = replay()
    for number, model in ((1, "a"), (2, "b")):
        models.submit(segment(number, model), SegmentCost(0.0, 20.0))
    assert ends(models) == [(1020.0, 1), (1020.0, 2)]
    replicas = replay(engines=2)
    for number in (1, 2, 3):
        replicas.submit(segment(number), SegmentCost(0.0, 20.0))
    assert ends(replicas) == [(1020.0, 1), (1020.0, 2), (1040.0, 3)]


def test_a_short_segment_goes_before_a_long_one_that_runs() -> None:
    line = replay()
    line.resume(segment(1), SegmentCost(0.0, 100.0))
    line.submit(segment(2), SegmentCost(10.0, 5.0))
    assert ends(line) == [(1015.0, 2), (1105.0, 1)], "what it has done is not lost"


def test_time_stops_where_it_is_told_to_and_goes_on_from_there() -> None:
    alone = replay()
    alone.submit(segment(1), SegmentCost(0.0, 20.0))
    assert ends(alone, until=1010.0) == [] and alone.now == 1010.0
    alone.submit(segment(2), SegmentCost(0.0, 5.0))
    assert ends(alone) == [(1015.0, 2), (1025.0, 1)]


def test_a_segment_of_a_model_that_never_runs_holds_nothing_else_up() -> None:
    both = replay()
    both.resume(segment(1, "gone"), SegmentCost(0.0, math.inf))
    both.submit(segment(2), SegmentCost(0.0, 20.0))
    assert ends(both) == [(1020.0, 2)]


@pytest.mark.parametrize(("limit", "last"), [(1, 1060.0), (3, 1060.0)])
def test_however_many_may_run_one_engine_does_all_work(limit: int, last: float) -> None:
    line = replay(a=limit)
    for number in (1, 2, 3):
        line.submit(segment(number), SegmentCost(0.0, 20.0))
    assert ends(line)[-1][0] == last
