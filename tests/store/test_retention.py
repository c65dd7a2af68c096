"""Which records may be deleted: those of what ended long ago, unless something that stays needs them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from store import events, files
from store.database import Database
from store.deletion import retention
from store.records import Base, Batch, File, Job, Segment
from tests.support.jobs import create_job
from tests.support.webapps import on_sqlite

DAY = 86_400
LATER = time.time() + 30 * DAY
pytestmark = on_sqlite


def old(session: Session, rows: list[retention.Old]) -> dict[str, int]:
    """How many rows of each table are found."""
    return {entry.record.__name__: len(retention.find(session, entry)) for entry in rows}


def count(session: Session, record: type[Base]) -> int:
    return session.scalar(select(func.count()).select_from(record)) or 0


def end(database: Database, work: Batch | Job, at: float) -> None:
    record = type(work)
    with database.write() as session:
        session.execute(update(record).where(record.id == work.id).values(status="completed", completed_at=int(at)))


def test_a_batch_goes_with_all_that_refers_to_it_once_it_ended_long_ago(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    ended, running = new_batch(1, 1), new_batch(1)
    end(database, ended, time.time())
    with database.write() as session:
        assert retention.work(session, Batch, time.time() - DAY) == []
        rows = retention.work(session, Batch, LATER)
        assert Counter(old(session, rows)) == Counter({"Batch": 1, "Segment": 2})
        for entry in rows:
            retention.purge(session, entry, retention.find(session, entry) or [])
        assert session.scalars(select(Batch.id)).all() == [running.id]
        assert count(session, Segment) == 1


def test_a_batch_and_a_job_that_began_long_ago_stay_if_they_have_just_ended(
    database: Database, project: str, new_batch: Callable[..., Batch]
) -> None:
    with database.write() as session:
        job = create_job(session, project)
    for work in (new_batch(1), job):
        end(database, work, LATER + 1)
    with database.write() as session:
        assert retention.work(session, Batch, LATER) == retention.work(session, Job, LATER) == []
        assert retention.work(session, Batch, LATER + DAY) and retention.work(session, Job, LATER + DAY)


def test_a_batch_goes_after_its_events(database: Database, new_batch: Callable[..., Batch]) -> None:
    batch = new_batch(1)
    end(database, batch, time.time())
    with database.write() as session:
        events.record(session, session.get_one(Batch, batch.id), "batch.completed")
        session.flush()
        assert retention.work(session, Batch, LATER) == []
        assert old(session, retention.events(LATER)) == {"Delivery": 0, "Event": 1}


def test_an_expired_file_stays_as_long_as_a_batch_needs_it(database: Database, new_batch: Callable[..., Batch]) -> None:
    batch = new_batch(1)
    with database.write() as session:
        session.execute(update(File).values(expires_at=1))
        unused = files.create(
            session, batch.project_id, filename="a", purpose="batch", size=0, sha256="2" * 64, expires_after=None
        )
        unused.expires_at = 1
        session.flush()
        expired, *_ = retention.others(time.time(), time.time())
        keys = retention.find(session, expired)
        assert [tuple(key) for key in keys] == [(unused.id,)]


def test_one_transaction_deletes_no_more_than_its_limit_and_nothing_that_is_new_again(
    database: Database, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS", 2)
    with database.write() as session:
        for name in "abc":
            files.create(session, project, filename=name, purpose="batch", size=0, sha256="3" * 64, expires_after=None)
        session.execute(update(File).values(expires_at=1))
        expired, *_ = retention.others(time.time(), time.time())
        keys = retention.find(session, expired)
        assert len(keys) == 2
        session.execute(update(File).where(File.id == keys[0][0]).values(expires_at=None))
        assert retention.purge(session, expired, keys) == 1
        assert count(session, File) == 2
