"""Jobs and batches are one list of work, without the batches that are stages of a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update

from batchyard.errors import RequestError
from store import batches, keys
from store.database import Database
from store.jobs import lifecycle
from store.projects import get_or_create
from store.records import Batch
from store.work import overview
from store.work.overview import Sort, WorkFilter
from tests.support.jobs import create_job, open_stage, start_job

NewBatch = Callable[..., Batch]


def listed(
    database: Database,
    project: str,
    *,
    sort: Sort = "next",
    after: str | None = None,
    limit: int = 10,
    **wanted: Any,
) -> tuple[list[str], bool]:
    with database.read() as session:
        records, has_more = overview.page(session, project, WorkFilter(**wanted), sort=sort, after=after, limit=limit)
        return [record.id for record in records], has_more


def every_page(database: Database, project: str, **options: Any) -> list[str]:
    """The ids of all pages of two."""
    ids: list[str] = []
    after, has_more = None, True
    while has_more:
        page, has_more = listed(database, project, after=after, limit=2, **options)
        ids += page
        after = page[-1]
    return ids


def test_what_runs_is_ordered_by_its_deadline_whatever_it_is(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    late, soon = new_batch(due_after=3000), new_batch(due_after=100)
    with database.write() as session:
        job = start_job(session, project, due_after=1000)
        open_stage(session, job)
    assert listed(database, project) == ([soon.id, job.id, late.id], False)
    assert listed(database, project, limit=2) == ([soon.id, job.id], True)
    with database.read() as session:
        assert overview.unfinished(session, project) == 3


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
    assert listed(database, project, status="ended") == (newest_first, False)
    assert every_page(database, project, status="ended") == newest_first


@pytest.mark.parametrize("sort", overview.SORTS)
def test_all_pages_together_have_each_batch_and_job_once_in_any_order(
    database: Database, project: str, new_batch: NewBatch, sort: Sort
) -> None:
    ids = []
    for number in range(3):
        batch, ends = new_batch(due_after=1000 - 100 * number), new_batch()
        with database.write() as session:
            batches.reject(session, ends.id, [])
            job = create_job(session, project, name=str(number), due_after=2000 - 100 * number)
            session.execute(update(Batch).where(Batch.id == batch.id).values(failed=number % 2, total=number // 2))
        ids += [batch.id, ends.id, job.id]
    pages = every_page(database, project, sort=sort)
    assert sorted(pages) == sorted(ids)
    expected = {
        "next": [ids[6], ids[3], ids[0], ids[8], ids[5], ids[2], ids[7], ids[4], ids[1]],
        "newest": ids[::-1],
        "oldest": ids,
    }
    if sort in expected:
        assert pages == expected[sort]
    else:
        assert pages[0] == {"failures": ids[3], "largest": ids[6]}[sort]


def test_the_list_is_narrowed_by_name_id_model_creator_status_and_time(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    plain, named = new_batch(), new_batch(request_metadata={"name": "Nightly 100% evals"})
    with database.write() as session:
        job = create_job(session, project, name="evals of may")
        batches.set_model(session, plain.id, "mini", {"engine": "echo"})
        session.execute(update(Batch).where(Batch.id == named.id).values(created_by="key-1"))
        batches.reject(session, named.id, [])
    assert named.name == "Nightly 100% evals"
    assert listed(database, project, text="EVALS")[0] == [job.id, named.id]
    assert listed(database, project, text="100%")[0] == [named.id]
    assert listed(database, project, text=plain.id[-8:])[0] == [plain.id]
    assert listed(database, project, text="_")[0] == every_page(database, project), "ids have it, as a character"
    assert listed(database, project, model="mini")[0] == [plain.id]
    assert listed(database, project, model="echo")[0] == [job.id], "not the engine of that name"
    assert listed(database, project, model="min")[0] == []
    assert listed(database, project, creator="key-1")[0] == [named.id]
    assert listed(database, project, status="failed")[0] == [named.id]
    assert listed(database, project, status="waiting")[0] == []
    assert listed(database, project, since=time.time() + 60)[0] == []
    assert len(listed(database, project, since=time.time() - 60)[0]) == 3


def test_only_what_went_wrong_and_was_not_retried_needs_attention(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    new_batch()
    late, partly, retried = new_batch(), new_batch(), new_batch()
    new_batch(retry_of=retried.id)
    with database.write() as session:
        session.execute(update(Batch).where(Batch.id == late.id).values(sla="late"))
        for batch in (partly, retried):
            session.execute(update(Batch).where(Batch.id == batch.id).values(failed=1, status="completed"))
    assert sorted(listed(database, project, attention=True)[0]) == sorted([late.id, partly.id])


def test_the_place_in_the_list_is_of_the_same_project(database: Database, project: str) -> None:
    with database.write() as session:
        keys.create(session, "other")
        theirs = create_job(session, get_or_create(session, "other").id)
        lifecycle.reject(session, theirs.id, [])
    for after in (theirs.id, "job_1", "batch_1", "x"):
        with pytest.raises(RequestError, match="after"):
            listed(database, project, after=after)
    assert listed(database, project) == ([], False)
