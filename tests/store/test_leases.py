"""Work is held by one holder at a time, and a holder whose epoch is gone cannot write."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from sqlalchemy import select, update

from batchyard.errors import LeaseLost
from store import segments
from store.database import Database
from store.leases import acquire_batch
from store.records import Batch, Segment
from tests.support.planned import a_chunk

NewBatch = Callable[..., Batch]


def started(database: Database) -> segments.SegmentLease:
    with database.write() as session:
        segment_id = session.scalars(select(Segment.id)).first()
        assert segment_id is not None
        epoch = segments.dispatch(session, segment_id, 60)
        assert epoch is not None
        segment = segments.start(session, segment_id, epoch, "worker-1", 60)
    assert segment is not None
    return segment


def let_the_lease_run_out(database: Database, segment_id: object) -> None:
    with database.write() as session:
        session.execute(update(Segment).where(Segment.id == segment_id).values(lease_expires_at=time.time() - 1))


def test_an_old_holder_that_wakes_up_cannot_write_renew_or_end(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(10)
    old = started(database)
    let_the_lease_run_out(database, old.lease.id)
    with database.write() as session:
        assert segments.recover(session) == 1
    new = started(database)
    for write in (
        lambda session: segments.append(session, old, a_chunk(old)),
        lambda session: segments.renew(session, old, 60),
        lambda session: segments.end(session, old, done=True, engine=None),
    ):
        with pytest.raises(LeaseLost), database.write() as session:
            write(session)
    with database.write() as session:
        segments.append(session, new, a_chunk(new, completed=4))
    with database.read() as session:
        assert session.get_one(Batch, batch.id).completed == 4
        assert len(segments.chunks(session, batch.id)) == 1


def test_a_holder_that_renews_keeps_its_segment(database: Database, new_batch: NewBatch) -> None:
    new_batch(10)
    segment = started(database)
    let_the_lease_run_out(database, segment.lease.id)
    with database.write() as session:
        assert segments.renew(session, segment, 60) == "run"
        assert segments.recover(session) == 0


def test_one_of_two_validators_gets_the_batch(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch()
    with database.write() as session:
        first = acquire_batch(session, batch.id, "worker-1", 60)
        assert first is not None
        assert acquire_batch(session, batch.id, "worker-2", 60) is None
    with database.write() as session:
        first.release(session)
        assert acquire_batch(session, batch.id, "worker-2", 60) is not None
    with pytest.raises(LeaseLost), database.write() as session:
        first.guard(session)
