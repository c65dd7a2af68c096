"""Events say what has changed and who did what, in order, as long as what they are about."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import select

from store import batches, events
from store.database import Database
from store.deletion import retention
from store.keys import Principal
from store.records import Batch, Event
from tests.support.planned import pause

NewBatch = Callable[..., Batch]


def test_who_did_what_is_listed_newest_first_and_stays_as_long_as_the_batch(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch, later = new_batch(1), time.time() + 3600
    pause(database, me, batch)
    with database.write() as session:
        events.act(session, me, "file.deleted", "file-1")
        events.act(session, None, "batch.cancelling", batch)
        batches.transition(session, batch.id, "in_progress", "finalizing", outcome="completed")
        batches.transition(session, batch.id, "finalizing", "completed")
    with database.read() as session:
        listed, more = events.actions(session, me.project_id, after=None, limit=1)
        assert ([event.type for event in listed], more) == (["file.deleted"], True)
        rest, more = events.actions(session, None, after=listed[0].id, limit=5)
        assert ([event.type for event in rest], more) == (["batch.paused"], False)
        assert events.actions(session, "proj_other", after=None, limit=5) == ([], False)

    def purge(olds: list[retention.Old]) -> None:
        with database.write() as session:
            for old in olds:
                retention.purge(session, old, retention.find(session, old))

    purge(retention.events(later))
    with database.read() as session:
        assert set(session.scalars(select(Event.type))) == {"file.deleted", "batch.paused"}
        olds = [*retention.work(session, Batch, later), *retention.others(later, later)]
    purge(olds)
    with database.read() as session:
        assert (session.scalars(select(Event.type)).all(), session.scalars(select(Batch.id)).all()) == ([], [])
