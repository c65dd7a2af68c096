"""Dispatch starts the most urgent segments that the limits allow."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from store import segments
from store.database import Database
from store.records import Batch, Segment
from tasks.dispatch import choose

MODELS = st.sampled_from(["a", "b", "c"])


@given(
    waiting=st.lists(st.tuples(st.integers(), MODELS), unique_by=lambda entry: entry[0]),
    active=st.dictionaries(MODELS, st.integers(0, 5)),
    limits=st.dictionaries(MODELS, st.integers(1, 5)),
    total=st.integers(0, 12),
)
def test_the_limits_hold_and_no_slot_stays_free(
    waiting: list[tuple[int, str]], active: dict[str, int], limits: dict[str, int], total: int
) -> None:
    chosen = choose(waiting, active, limits, total)
    model_of = dict(waiting)
    used = {model: active.get(model, 0) + sum(model_of[i] == model for i in chosen) for model in "abc"}
    if chosen:
        assert sum(used.values()) <= total
    assert all(used[model] <= max(limits.get(model, 0), active.get(model, 0)) for model in "abc")
    left_over = [
        segment_id for segment_id, model in waiting if segment_id not in chosen and used[model] < limits.get(model, 0)
    ]
    assert not left_over or sum(used.values()) >= total
    assert chosen == [segment_id for segment_id, _ in waiting if segment_id in chosen]


def test_the_earliest_deadline_is_first_and_a_batch_runs_from_its_start(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    late, soon = new_batch(1, 1, window="24h"), new_batch(1, 1, window="1h")
    with database.read() as session:
        order = [session.get_one(Segment, segment_id) for segment_id, _ in segments.waiting(session, 10)]
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
        assert {model for _, model in segments.waiting(session, 2)} == {"busy", "idle"}


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
        assert segments.active(session) == {"echo": 3}
