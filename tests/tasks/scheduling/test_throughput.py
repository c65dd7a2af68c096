"""Only answers of an engine measure its speed."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from sqlalchemy import select, update

from store import segments
from store.database import Database
from store.records import Batch, ResultChunk, Segment, Speed
from tasks.scheduling.throughput import ThroughputMeter


def a_part(answered: int, shared: int) -> ResultChunk:
    tokens = {"input_tokens": 9 * answered, "shared_input_tokens": 9 * shared}
    return ResultChunk(
        completed=answered, failed=0, output_tokens=0, shared_requests=shared, shared_output_tokens=0, **tokens
    )


def meters(database: Database, batch: Batch) -> list[ThroughputMeter]:
    """Start all segments of the batch; a meter for each."""
    meters = []
    with database.write() as session:
        for segment_id in session.scalars(select(Segment.id).where(Segment.batch_id == batch.id)):
            work = segments.start(session, segment_id, segments.dispatch(session, segment_id, 30) or 0, "test", 30)
            assert work is not None
            meters.append(ThroughputMeter(work, "config"))
    return meters


def test_segments_side_by_side_count_no_second_twice(database: Database, new_batch: Callable[..., Batch]) -> None:
    """The second segment waits long; that is no lead, and the first one's time does not count for it."""
    first, second = meters(database, new_batch(100, 100))
    began = time.monotonic()
    for meter in (first, first, first, second, first, second):
        time.sleep(0.05)
        with database.write() as session:
            meter.measure(session, a_part(10, shared=0))
            session.execute(update(Segment).where(Segment.number == 0).values(answered=10))
    passed = time.monotonic() - began
    with database.read() as session:
        speed = session.scalars(select(Speed)).one()
    assert speed.requests == pytest.approx(50, rel=0.01), "all but the very first, of which nothing is known"
    assert 5 * 0.05 <= speed.seconds <= passed - 0.05
    assert speed.leads == 0


def test_answers_from_the_cache_are_no_measure_of_an_engines_speed(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    (meter,) = meters(database, new_batch(100))
    with database.write() as session:
        meter.measure(session, a_part(50, shared=50))
    with database.read() as session:
        assert session.scalars(select(Speed)).all() == []
    with database.write() as session:
        meter.measure(session, a_part(10, shared=4))
    with database.read() as session:
        speed = session.scalars(select(Speed)).one()
    assert (speed.requests, speed.tokens, speed.measurements) == (6, 54, 0), "the first of the engine's is its lead"
