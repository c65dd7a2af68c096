"""Content is kept as long as a record needs it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from sqlalchemy import update

from store import files
from store.database import Database
from store.deletion import garbage
from store.records import Batch, ResultChunk
from tests.support.planned import started
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite
NewBatch = Callable[..., Batch]
INPUT, PLAN, CHUNK = "0" * 64, "1" * 64, "2" * 64


@pytest.fixture
def batch(database: Database, new_batch: NewBatch) -> Batch:
    """A batch that runs, whose input file was deleted, with a result chunk."""
    batch = new_batch(5)
    lease = started(database, batch)
    with database.write() as session:
        files.delete(session, batch.project_id, batch.input_file_id)
        fields = {"batch_id": batch.id, "segment_id": lease.lease.id, "created_at": time.time()}
        session.add(ResultChunk(**fields, sha256=CHUNK, completed=1, failed=0))
    return batch


def referenced(database: Database, *, live_at: float | None = None) -> set[str]:
    at = time.time() + 1
    with database.read() as session:
        return garbage.referenced(session, [INPUT, PLAN, CHUNK, "f" * 64], at if live_at is None else live_at, at)


def end(database: Database, at: int) -> None:
    with database.write() as session:
        session.execute(update(Batch).values(status="completed", completed_at=at))


def test_a_batch_that_runs_keeps_its_input_plan_and_chunks(database: Database, batch: Batch) -> None:
    assert referenced(database) == {INPUT, PLAN, CHUNK}


def test_a_batch_that_has_ended_keeps_its_chunks_until_they_are_forgotten(database: Database, batch: Batch) -> None:
    end(database, 1000)
    assert referenced(database) == {CHUNK}
    for before, number in ((1000, 0), (1001, 1)):
        with database.write() as session:
            assert garbage.forget_chunks(session, [CHUNK], before) == number
    assert referenced(database) == set()


def test_a_file_that_has_just_expired_keeps_its_content_for_its_readers(database: Database, batch: Batch) -> None:
    end(database, 1000)
    assert referenced(database, live_at=time.time() - 60) == {INPUT, CHUNK}


def test_chunks_of_a_batch_that_runs_are_not_forgotten(database: Database, batch: Batch) -> None:
    with database.write() as session:
        assert garbage.forget_chunks(session, [CHUNK], time.time() + 60) == 0
