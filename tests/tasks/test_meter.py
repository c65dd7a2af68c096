"""Only what an engine answered is a measure of its speed."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select

from store import segments
from store.database import Database
from store.records import Batch, Part, Segment, Speed
from tasks.meter import Meter


def a_part(answered: int, shared: int) -> Part:
    tokens = {"input_tokens": 9 * answered, "shared_input_tokens": 9 * shared}
    return Part(completed=answered, failed=0, output_tokens=0, shared_requests=shared, shared_output_tokens=0, **tokens)


def test_answers_from_the_cache_are_no_measure_of_an_engines_speed(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    batch = new_batch(100)
    with database.write() as session:
        segment_id = session.scalars(select(Segment.id).where(Segment.batch_id == batch.id)).one()
        work = segments.start(session, segment_id, segments.dispatch(session, segment_id, 30) or 0, "test", 30)
    assert work is not None
    meter = Meter(work, "config")
    with database.write() as session:
        meter.measure(session, a_part(50, shared=50))
    with database.read() as session:
        assert session.scalars(select(Speed)).all() == []
    with database.write() as session:
        meter.measure(session, a_part(10, shared=4))
    with database.read() as session:
        speed = session.scalars(select(Speed)).one()
    assert (speed.requests, speed.tokens, speed.parts) == (6, 54, 0), "the first of the engine's is its lead"
