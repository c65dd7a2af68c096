"""Jobs and batches are one list of work, without the batches that are stages of a job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batchyard.errors import RequestError
from store import batches, keys
from store.database import Database
from store.jobs import lifecycle, work
from store.projects import get_or_create
from store.records import Batch
from tests.support.jobs import create_job, open_stage, start_job

NewBatch = Callable[..., Batch]


def running(database: Database, project: str, limit: int = 10) -> list[str]:
    with database.read() as session:
        return [record.id for record in work.running(session, project, limit=limit)]


def ended(database: Database, project: str, after: str | None = None, limit: int = 10) -> tuple[list[str], bool]:
    with database.read() as session:
        records, has_more = work.ended(session, project, after=after, limit=limit)
        return [record.id for record in records], has_more


def test_what_runs_is_ordered_by_its_deadline_whatever_it_is(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    late, soon = new_batch(due_after=3000), new_batch(due_after=100)
    with database.write() as session:
        job = start_job(session, project, due_after=1000)
        open_stage(session, job)
    assert running(database, project) == [soon.id, job.id, late.id]
    assert running(database, project, limit=2) == [soon.id, job.id]
    with database.read() as session:
        assert work.unfinished(session, project) == 3


def test_what_has_ended_is_listed_newest_first_page_by_page(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    ids: list[str] = []
    for number in range(3):
        batch = new_batch()
        with database.write() as session:
            job = create_job(session, project, name=str(number))
            stage = open_stage(session, start_job(session, project))
            batches.transition(session, stage.id, "in_progress", "finalizing", outcome="completed")
            batches.transition(session, stage.id, "finalizing", "completed")
            batches.reject(session, batch.id, [])
            lifecycle.reject(session, job.id, [])
        ids += [batch.id, job.id]
    newest_first = ids[::-1]
    assert ended(database, project) == (newest_first, False)
    pages: list[str] = []
    after, has_more = None, True
    while has_more:
        page, has_more = ended(database, project, after, limit=2)
        pages += page
        after = page[-1]
    assert pages == newest_first


def test_the_place_in_the_list_is_of_the_same_project(database: Database, project: str) -> None:
    with database.write() as session:
        keys.create(session, "other")
        theirs = create_job(session, get_or_create(session, "other").id)
        lifecycle.reject(session, theirs.id, [])
    for after in (theirs.id, "job_1", "batch_1", "x"):
        with pytest.raises(RequestError, match="after"):
            ended(database, project, after)
    assert ended(database, project) == ([], False)
