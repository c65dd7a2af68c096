"""The queue says what waits and what runs, and no rate that was not measured."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import pytest

from store import batches, queue, segments, speeds
from store.database import Database
from store.records import Batch, ResultChunk, Segment


def chunk(batch: Batch, segment_id: int, seconds_ago: float, completed: int) -> ResultChunk:
    return ResultChunk(
        batch_id=batch.id,
        segment_id=segment_id,
        sha256=secrets.token_hex(32),
        completed=completed,
        failed=0,
        input_tokens=3 * completed,
        cached_tokens=0,
        output_tokens=completed,
        created_at=time.time() - seconds_ago,
    )


def test_an_empty_queue_has_nothing_and_no_deadline(database: Database, project: str) -> None:
    with database.read() as session:
        now = queue.snapshot(session)
    assert (now.models, now.next_deadline_seconds) == ([], None)
    assert now.batches == {"cancelling": 0, "finalizing": 0, "in_progress": 0, "validating": 0}


@pytest.mark.usefixtures("frozen_time")
def test_what_waits_and_what_runs_is_counted_by_model(database: Database, new_batch: Callable[..., Batch]) -> None:
    new_batch(5, 4, 3, window="1h", model="a")
    new_batch(2, model="b")
    new_batch()
    with database.write() as session:
        first = min(segments.waiting(session, 1)).segment_id
        segments.dispatch(session, first, 60)
    with database.read() as session:
        now = queue.snapshot(session)
    assert now.batches["in_progress"] == 2
    assert now.batches["validating"] == 1
    assert now.next_deadline_seconds == pytest.approx(3600, abs=5)
    a, b = now.models
    assert (a.model, a.pending_segments, a.running_segments, a.waiting_requests) == ("a", 2, 1, 7)
    assert (b.model, b.pending_segments, b.running_segments, b.waiting_requests) == ("b", 1, 0, 2)
    assert a.oldest_seconds == pytest.approx(0, abs=5)
    assert (a.rows_per_second, a.tokens_per_second) == (None, None)


@pytest.mark.usefixtures("frozen_time")
def test_a_projects_queue_has_nothing_of_another_project(database: Database, new_batch: Callable[..., Batch]) -> None:
    batch = new_batch(1000, model="a")
    with database.write() as session:
        session.query(Segment).one().epoch = 1
        session.add_all([chunk(batch, session.query(Segment).one().id, ago, 100) for ago in (20, 10)])
    with database.read() as session:
        own = queue.snapshot(session, batch.project_id)
        other = queue.snapshot(session, "project_other")
    assert own.batches["in_progress"] == own.sla["on_track"] == 1
    assert own.models[0].rows_per_second is not None
    assert (sum(other.batches.values()), sum(other.sla.values()), other.models) == (0, 0, [])
    assert other.next_deadline_seconds is None


@pytest.mark.usefixtures("frozen_time")
def test_rates_are_of_the_last_minute_and_of_what_was_measured(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    batch = new_batch(1000, model="a")
    with database.write() as session:
        segment = session.query(Segment).one()
        segment.epoch, segment_id = 1, segment.id
        session.add(chunk(batch, segment_id, 20, 500))  # starts the clock: it was answered before
    with database.read() as session:
        assert queue.snapshot(session).models[0].rows_per_second is None
    with database.write() as session:
        session.add_all([chunk(batch, segment_id, 10, 100), chunk(batch, segment_id, 5, 100)])
    with database.read() as session:
        (model,) = queue.snapshot(session).models
    assert model.rows_per_second == pytest.approx(10, rel=0.05)
    assert model.tokens_per_second == pytest.approx(40, rel=0.05)
    with database.read() as session:
        assert speeds.recent(session, ResultChunk.batch_id, batch.id) == {batch.id: pytest.approx((10, 40), rel=0.05)}


def test_what_has_ended_is_not_in_the_queue(database: Database, new_batch: Callable[..., Batch]) -> None:
    batch = new_batch(3)
    with database.write() as session:
        batches.transition(session, batch.id, "in_progress", "finalizing")
        batches.transition(session, batch.id, "finalizing", "completed")
    with database.read() as session:
        assert queue.snapshot(session).models == []
