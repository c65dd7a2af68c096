"""The chunks of a job are in the order of adding; those of a batch can be read behind a cursor."""

from __future__ import annotations

import time

from sqlalchemy import update

from store import segments
from store.database import Database
from store.jobs import chunk_records, stages
from store.records import JobChunk, ResultChunk
from tests.support.jobs import open_stage, planned, start_job, start_next


def append(database: Database, lease: segments.SegmentLease, sha256: str, requests: int = 2) -> None:
    chunk = ResultChunk(
        batch_id=lease.batch_id,
        segment_id=lease.lease.id,
        sha256=sha256,
        completed=requests,
        failed=0,
        created_at=time.time(),
    )
    with database.write() as session:
        segments.append(session, lease, chunk)


def test_new_result_chunks_are_those_behind_the_cursor(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        batches_of_job = [open_stage(session, job, number, name) for number, name in enumerate(("argue", "judge"))]
        for batch in batches_of_job:
            stages.extend(session, batch.id, [planned(10)])
    leases = [start_next(database), start_next(database)]
    by_batch = {lease.batch_id: lease for lease in leases}
    for digit in "123":
        for batch in batches_of_job:
            append(database, by_batch[batch.id], digit * 32 + batch.id[-32:])
    with database.read() as session:
        for batch in batches_of_job:
            new = chunk_records.of_batch(session, batch.id, 0)
            assert [sha256[0] for _, sha256 in new] == ["1", "2", "3"]
            assert [sha256[0] for _, sha256 in chunk_records.of_batch(session, batch.id, new[0][0])] == ["2", "3"]
            assert chunk_records.of_batch(session, batch.id, new[-1][0]) == []


def test_a_jobs_chunks_are_in_the_order_of_adding_and_each_is_there_once(database: Database, project: str) -> None:
    with database.write() as session:
        job, other = start_job(session, project), start_job(session, project)
        assert chunk_records.add(session, job.id, "result", "1" * 64, 5)
        assert chunk_records.add(session, job.id, "judgement", "0" * 64, 7)
        assert chunk_records.add(session, other.id, "result", "1" * 64, 5)
        assert chunk_records.add(session, job.id, "result", "2" * 64, 6)
    with database.write() as session:
        assert not chunk_records.add(session, job.id, "result", "1" * 64, 5)
    with database.read() as session:
        everything = chunk_records.of_job(session, job.id)
        assert [(chunk.kind, chunk.sha256[0], chunk.rows) for chunk in everything] == [
            ("result", "1", 5),
            ("judgement", "0", 7),
            ("result", "2", 6),
        ]
        assert chunk_records.of_job(session, job.id, "judgement") == [everything[1]]
        assert [entry.id for entry in everything] == sorted(entry.id for entry in everything)


def test_a_jobs_chunks_can_be_read_between_two_times(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        for digit in "123":
            chunk_records.add(session, job.id, "judgement", digit * 64, 1)
            session.execute(update(JobChunk).where(JobChunk.sha256 == digit * 64).values(created_at=float(digit)))
    with database.read() as session:
        between = chunk_records.of_job(session, job.id, "judgement", since=2.0, until=2.5)
    assert [entry.sha256[0] for entry in between] == ["2"]
