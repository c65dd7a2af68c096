"""Dispatch starts the most urgent segments that the limits allow."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from store import segments
from store.database import Database
from store.records import Batch, Segment
from store.segments import Waiting
from tasks.dispatch import choose

MODELS = st.sampled_from(["a", "b", "c"])
PROJECTS = st.sampled_from(["x", "y", "z"])
WAITING = st.lists(st.builds(Waiting, st.integers(), MODELS, PROJECTS), unique_by=lambda entry: entry.segment_id)
ACTIVE = st.dictionaries(st.tuples(MODELS, PROJECTS), st.integers(0, 4))
LIMITS = st.dictionaries(MODELS, st.integers(1, 5))


def used_after(
    waiting: list[Waiting], active: dict[tuple[str, str], int], chosen: list[int]
) -> tuple[Counter[str], Counter[str]]:
    """Slots in use per model and per project once the chosen segments run."""
    models: Counter[str] = Counter()
    projects: Counter[str] = Counter()
    started = [(entry.model, entry.project_id, 1) for entry in waiting if entry.segment_id in chosen]
    for model, project, number in [*((*key, number) for key, number in active.items()), *started]:
        models[model] += number
        projects[project] += number
    return models, projects


@given(waiting=WAITING, active=ACTIVE, limits=LIMITS, total=st.integers(0, 12))
def test_the_limits_hold_and_no_slot_stays_free(
    waiting: list[Waiting], active: dict[tuple[str, str], int], limits: dict[str, int], total: int
) -> None:
    chosen = choose(waiting, active, limits, total)
    models, _ = used_after(waiting, active, chosen)
    before, _ = used_after(waiting, active, [])
    assert len(chosen) == len(set(chosen))
    assert set(chosen) <= {entry.segment_id for entry in waiting}
    if chosen:
        assert models.total() <= total
    assert all(models[model] <= max(limits.get(model, 0), before[model]) for model in "abc")
    left_over = [
        entry
        for entry in waiting
        if entry.segment_id not in chosen and models[entry.model] < limits.get(entry.model, 0)
    ]
    assert not left_over or models.total() >= total


@given(waiting=WAITING, active=ACTIVE, limits=LIMITS, total=st.integers(1, 12))
def test_no_project_goes_beyond_its_share_while_another_that_could_run_is_below_its_own(
    waiting: list[Waiting], active: dict[tuple[str, str], int], limits: dict[str, int], total: int
) -> None:
    chosen = choose(waiting, active, limits, total)
    _, before = used_after(waiting, active, [])
    models, projects = used_after(waiting, active, chosen)
    share = total / max(1, len(before.keys() | {entry.project_id for entry in waiting}))
    hungry = {
        entry.project_id
        for entry in waiting
        if entry.segment_id not in chosen
        and models[entry.model] < limits.get(entry.model, 0)
        and projects[entry.project_id] < share
    }
    favoured = [project for project in projects if projects[project] > max(before[project], math.ceil(share))]
    assert not (hungry and favoured)


@given(waiting=WAITING, limits=LIMITS, total=st.integers(0, 12))
def test_within_a_project_and_a_model_the_earliest_deadline_is_first(
    waiting: list[Waiting], limits: dict[str, int], total: int
) -> None:
    chosen = choose(waiting, {}, limits, total)
    for model in "abc":
        for project in "xyz":
            queue = [entry.segment_id for entry in waiting if (entry.model, entry.project_id) == (model, project)]
            started = [segment_id for segment_id in chosen if segment_id in queue]
            assert started == queue[: len(started)]


def test_a_project_with_one_small_batch_gets_the_next_slot_of_one_with_many() -> None:
    waiting = [*(Waiting(number, "m", "big") for number in range(50)), Waiting(99, "m", "small")]
    assert choose(waiting, {("m", "big"): 1}, {"m": 2}, 2) == [99]
    assert choose(waiting, {("m", "small"): 1}, {"m": 2}, 2) == [0]
    assert choose(waiting[:-1], {("m", "big"): 1}, {"m": 2}, 2) == [0]


def test_the_earliest_deadline_is_first_and_a_batch_runs_from_its_start(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    late, soon = new_batch(1, 1, window="24h"), new_batch(1, 1, window="1h")
    with database.read() as session:
        order = [session.get_one(Segment, segment_id) for segment_id, *_ in segments.waiting(session, 10)]
    assert [(segment.batch_id, segment.number) for segment in order] == [
        (soon.id, 0),
        (soon.id, 1),
        (late.id, 0),
        (late.id, 1),
    ]


def test_a_model_with_many_waiting_segments_does_not_hide_another(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    new_batch(*[1] * 30, window="1h", model="busy")
    new_batch(1, window="24h", model="idle")
    with database.read() as session:
        assert {entry.model for entry in segments.waiting(session, 2)} == {"busy", "idle"}


def test_a_segment_that_failed_waits_its_delay(database: Database, new_batch: Callable[..., Batch]) -> None:
    new_batch(1)
    with database.write() as session:
        session.execute(update(Segment).values(not_before=time.time() + 60))
        assert segments.waiting(session, 10) == []


def test_many_dispatchers_at_once_never_pass_the_limit(database: Database, new_batch: Callable[..., Batch]) -> None:
    new_batch(*[1] * 20)

    def dispatch(_: int) -> None:
        with database.write(serial=True) as session:
            active = segments.active(session)
            for segment_id in choose(segments.waiting(session, 3), active, {"echo": 3}, 3):
                segments.dispatch(session, segment_id, 60)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(dispatch, range(24)))
    with database.read() as session:
        assert list(segments.active(session).values()) == [3]
