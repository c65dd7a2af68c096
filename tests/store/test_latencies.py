"""A batch's percentiles add up its result chunks, whoever appends them, and outlive them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import delete, select

from batchyard import histogram, latency
from batchyard.errors import LeaseLost
from store import batches, segments
from store.database import Database
from store.records import Batch, ResultChunk, Segment
from store.segments import SegmentLease

NewBatch = Callable[..., Batch]


def start(database: Database) -> list[SegmentLease]:
    """Start every pending segment."""
    leases = []
    with database.write() as session:
        for segment_id in session.scalars(select(Segment.id)).all():
            epoch = segments.dispatch(session, segment_id, 60)
            lease = segments.start(session, segment_id, epoch or 0, "worker", 60)
            assert lease is not None
            leases.append(lease)
    return leases


def append(database: Database, lease: SegmentLease, name: str, seconds: list[float]) -> None:
    """Append a chunk of answers that took so long. `name` is a hexadecimal digit."""
    with database.write() as session:
        chunk = ResultChunk(
            batch_id=lease.batch_id,
            segment_id=lease.lease.id,
            sha256=name * 64,
            completed=len(seconds),
            failed=0,
            created_at=time.time(),
        )
        segments.append(session, lease, chunk, histogram.of(seconds))


def summary(database: Database, batch: Batch) -> latency.Latency | None:
    with database.read() as session:
        return latency.summary(session.get_one(Batch, batch.id).latencies)


def test_a_batch_has_no_percentiles_before_a_request_was_measured(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(10)
    (lease,) = start(database)
    assert summary(database, batch) is None
    append(database, lease, "a", [])
    assert summary(database, batch) is None


def test_chunks_of_a_segment_add_up_and_their_deletion_changes_nothing(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(200)
    (lease,) = start(database)
    append(database, lease, "a", [0.1] * 90)
    append(database, lease, "b", [1.0] * 8 + [10.0] * 2)
    append(database, lease, "b", [1.0] * 8 + [10.0] * 2)  # its COMMIT was unclear
    with database.write() as session:
        session.execute(delete(ResultChunk))
    measured = summary(database, batch)
    assert measured is not None
    assert measured.requests == 100
    assert [measured.p50, measured.p95, measured.p99] == pytest.approx([0.1, 1.0, 10.0], rel=0.02)


def test_models_and_classes_have_their_own(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(10, 10, 10)
    with database.write() as session:
        for segment, (model, kind) in zip(
            session.scalars(select(Segment).order_by(Segment.id)),
            [("one", "decode"), ("one", "prefill"), ("two", "decode")],
            strict=True,
        ):
            segment.model, segment.request_class = model, kind
        config = {"name": "one", "engine": "echo"}
        session.get_one(Batch, batch.id).models = {"one": config, "two": config | {"name": "two"}}
    for lease, seconds in zip(start(database), (1.0, 2.0, 4.0), strict=True):
        append(database, lease, "a", [seconds])
    measured = summary(database, batch)
    assert measured is not None
    assert measured.p99 == pytest.approx(4.0, rel=0.02)
    one, two = measured.models["one"], measured.models["two"]
    assert [one.requests, one.p50, one.p99] == pytest.approx([2, 1.0, 2.0], rel=0.02)
    assert {kind: entry.p50 for kind, entry in one.classes.items()} == {
        "decode": pytest.approx(1.0, rel=0.02),
        "prefill": pytest.approx(2.0, rel=0.02),
    }
    assert list(two.classes) == ["decode"]


def test_segments_that_append_at_once_lose_no_measurement(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(100, 100)

    def work(lease: SegmentLease) -> None:
        for name in "0123456789abcdef":
            append(database, lease, name, [0.5] * 5)

    threads = [threading.Thread(target=work, args=(lease,)) for lease in start(database)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    measured = summary(database, batch)
    assert measured is not None
    assert measured.requests == 160


def test_a_former_holder_adds_nothing(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(10)
    (lease,) = start(database)
    with database.write() as session:
        session.get_one(Segment, lease.lease.id).epoch += 1
    with pytest.raises(LeaseLost):
        append(database, lease, "a", [1.0])
    assert summary(database, batch) is None


def test_the_latest_latencies_are_those_of_batches_that_run_or_are_new(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    batch = new_batch(10)
    (lease,) = start(database)
    append(database, lease, "a", [1.0])
    with database.write() as session:
        assert len(batches.latest_latencies(session, project, time.time())) == 1
        assert len(batches.latest_latencies(session, None, time.time())) == 1
        assert batches.latest_latencies(session, "another", time.time()) == []
        later = time.time() + batches.LATEST_SECONDS + 10
        assert len(batches.latest_latencies(session, project, later)) == 1
        session.get_one(Batch, batch.id).status = "completed"
        session.flush()
        assert batches.latest_latencies(session, project, later) == []
