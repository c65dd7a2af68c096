"""The policy keeps the limits, starts the earliest due first, and lets no project starve."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.segments import PendingSegment
from tasks.scheduling import policy
from tasks.scheduling.policy import Limits, Policy, RecentUsage
from tasks.scheduling.replay import Replay, SegmentCost

MODELS = ["a", "b", "c"]
PROJECTS = ["x", "y", "z"]
WAITING = st.lists(
    st.builds(
        PendingSegment,
        infeasible=st.booleans(),
        due_at=st.integers(0, 100),
        batch_id=st.text("0123456789", min_size=1, max_size=2),
        number=st.integers(0, 5),
        segment_id=st.integers(0, 10_000),
        model=st.sampled_from(MODELS),
        project_id=st.sampled_from(PROJECTS),
    ),
    unique_by=lambda entry: entry.segment_id,
)
ACTIVE = st.dictionaries(st.tuples(st.sampled_from(MODELS), st.sampled_from(PROJECTS)), st.integers(0, 4))
LIMITS = st.builds(
    Limits,
    total=st.integers(0, 12),
    models=st.dictionaries(st.sampled_from(MODELS), st.integers(1, 5)),
    projects=st.dictionaries(st.sampled_from(PROJECTS), st.integers(1, 5)),
    min_share=st.floats(0, 1),
)
SERVICE = st.builds(RecentUsage, st.dictionaries(st.sampled_from(PROJECTS), st.floats(0, 1000)), st.just(0.0))


def choose(*arguments: Any) -> list[int]:
    """The ids of the segments that the policy chooses."""
    return [entry.segment_id for entry in policy.choose(*arguments)]


def waiting(segment_id: int, project: str = "x", due_at: float = 100, model: str = "a") -> PendingSegment:
    return PendingSegment(False, due_at, f"batch-{project}", segment_id, segment_id, model, project)


@given(waiting=WAITING, active=ACTIVE, limits=LIMITS, recent_usage=SERVICE)
def test_the_limits_hold_and_no_slot_that_somebody_could_use_stays_free(
    waiting: list[PendingSegment], active: dict[tuple[str, str], int], limits: Limits, recent_usage: RecentUsage
) -> None:
    chosen = choose(waiting, active, limits, recent_usage)
    started = [entry for entry in waiting if entry.segment_id in chosen]
    assert len(chosen) == len(set(chosen)) == len(started)
    models = Counter(entry.model for entry in started)
    projects = Counter(entry.project_id for entry in started)
    for (model, project), slots in active.items():
        models[model] += slots
        projects[project] += slots
    if started:
        assert models.total() <= limits.total
    assert all(models[entry.model] <= limits.models[entry.model] for entry in started)
    assert all(projects[entry.project_id] <= limits.projects.get(entry.project_id, math.inf) for entry in started)
    able = [
        entry
        for entry in waiting
        if entry.segment_id not in chosen
        and models[entry.model] < limits.models.get(entry.model, 0)
        and projects[entry.project_id] < limits.projects.get(entry.project_id, math.inf)
    ]
    assert not able or models.total() >= limits.total


@given(waiting=WAITING, active=ACTIVE, limits=LIMITS, recent_usage=SERVICE)
def test_within_a_project_and_a_model_what_is_due_first_starts_first(
    waiting: list[PendingSegment], active: dict[tuple[str, str], int], limits: Limits, recent_usage: RecentUsage
) -> None:
    chosen = choose(waiting, active, limits, recent_usage)
    for model in MODELS:
        for project in PROJECTS:
            queue = sorted(entry for entry in waiting if (entry.model, entry.project_id) == (model, project))
            started = [segment_id for segment_id in chosen if segment_id in {entry.segment_id for entry in queue}]
            assert started == [entry.segment_id for entry in queue[: len(started)]]


@given(waiting=WAITING, total=st.integers(1, 12))
def test_among_projects_that_were_served_alike_the_earliest_due_time_is_first(
    waiting: list[PendingSegment], total: int
) -> None:
    limits = Limits(total, dict.fromkeys(MODELS, 100))
    chosen = choose(waiting, {}, limits, RecentUsage(dict.fromkeys(PROJECTS, 7.0), 0.0))
    assert chosen == [entry.segment_id for entry in sorted(waiting)[:total]]


def test_a_project_that_was_hardly_served_goes_before_one_whose_work_is_due_sooner() -> None:
    entries = [waiting(1, "big", due_at=1), waiting(2, "small", due_at=9)]
    limits = Limits(1, {"a": 1}, min_share=0.5)
    assert choose(entries, {}, limits, RecentUsage({"big": 90, "small": 10}, 0.0)) == [2]
    assert choose(entries, {}, limits, RecentUsage({"big": 70, "small": 30}, 0.0)) == [1]
    assert choose(entries, {}, Limits(1, {"a": 1}, min_share=0.0), RecentUsage({"big": 90}, 0.0)) == [1]


def test_what_cannot_be_done_in_time_any_more_makes_way_for_what_can() -> None:
    entries = [waiting(1, due_at=1)._replace(infeasible=True), waiting(2, due_at=9)]
    assert choose(entries, {}, Limits(1, {"a": 1})) == [2]
    assert choose(entries, {}, Limits(2, {"a": 2})) == [2, 1]


def test_a_limit_of_a_projects_own_leaves_its_slots_to_others() -> None:
    entries = [*(waiting(number, "x", due_at=1) for number in range(5)), waiting(9, "y", due_at=50)]
    assert choose(entries, {}, Limits(4, {"a": 4}, projects={"x": 2})) == [0, 1, 9]


def test_a_model_that_is_not_served_has_no_slot() -> None:
    assert choose([waiting(1, model="gone")], {}, Limits(4, {"a": 4})) == []


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("projects", [2, 5])
def test_nobody_starves_beside_projects_whose_work_is_always_due_sooner(slots: int, projects: int) -> None:
    """One project's work is due last; the others have far more of it than there is time for."""
    limits = Limits(slots, {"a": slots}, min_share=0.5)
    replay = Replay(Policy(limits), 0.0, capacity=slots)
    number = 0
    for project in range(projects - 1):
        for _ in range(200 * slots):
            replay.submit(waiting(number, f"hog-{project}", due_at=1), SegmentCost(0.0, 10.0))
            number += 1
    for _ in range(10 * slots):
        replay.submit(waiting(number, "modest", due_at=10**9), SegmentCost(0.0, 10.0))
        number += 1
    mine = [at for at, entry in replay.run() if entry.project_id == "modest"]
    # Of each second it is owed floor / projects of the slots, for 100 seconds of work on each.
    assert mine[-1] <= 100 * projects / limits.min_share * 1.25
    gaps = [after - before for before, after in zip([0.0, *mine], mine, strict=False)]
    assert max(gaps) <= 10 * projects / limits.min_share * 2


def test_a_small_urgent_batch_starts_when_the_next_segment_of_a_big_one_ends() -> None:
    replay = Replay(Policy(Limits(2, {"a": 2})), 0.0, capacity=2)
    for number in range(50):
        replay.submit(waiting(number, "big", due_at=86400), SegmentCost(0.0, 100.0))
    list(replay.run(until=250.0))
    replay.submit(PendingSegment(False, 600, "urgent", 0, 99, "a", "small"), SegmentCost(0.0, 1.0))
    ends = {entry.batch_id: at for at, entry in replay.run() if entry.batch_id == "urgent"}
    assert ends == {"urgent": pytest.approx(301.0)}


def test_segments_on_one_engine_take_turns_and_one_may_begin_while_another_has_it() -> None:
    replay = Replay(Policy(Limits(2, {"a": 2})), 0.0)
    replay.submit(waiting(1), SegmentCost(0.0, 10.0))
    replay.submit(waiting(2), SegmentCost(5.0, 10.0))
    replay.submit(waiting(3), SegmentCost(5.0, 10.0))
    assert [(at, entry.segment_id) for at, entry in replay.run()] == [(10.0, 1), (20.0, 2), (30.0, 3)]


def test_a_small_segment_overtakes_a_big_one_in_the_engine_and_takes_only_its_own_time() -> None:
    replay = Replay(Policy(Limits(2, {"a": 2})), 0.0)
    replay.submit(waiting(1), SegmentCost(0.0, 100.0))
    list(replay.run(until=20.0))
    replay.submit(waiting(2), SegmentCost(0.0, 5.0))
    assert [(at, entry.segment_id) for at, entry in replay.run()] == [(25.0, 2), (105.0, 1)]
