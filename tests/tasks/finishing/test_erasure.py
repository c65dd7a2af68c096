"""What is deleted goes with all that it had, its content soon after, and nobody else's with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from batchyard.errors import ConflictError, NotFoundError, RequestError, UnavailableError
from store import batches, cache, files, keys, projects, webhooks
from store.artifacts import Artifacts
from store.batches import BATCHES
from store.deletion import erasure
from store.jobs.lifecycle import JOBS
from store.keys import Principal
from store.records import Base, Batch, CachedAnswer, ErasedContent, Event, File, Job, Project, Schedule
from tasks.context import AppContext
from tasks.finishing import erasure as erasing
from tests.support.webapps import on_sqlite
from tests.tasks.finishing import test_old_jobs as old_jobs
from tests.tasks.finishing.test_garbage import Upload, a_running_batch, end, is_there

job = old_jobs.job  # a fixture: a job in progress with all that a job may have
MINUTE = 60
HALF_AN_HOUR = 30 * MINUTE
CANARY = "canary-in-the-options"


@pytest.fixture
def context(new_context: Callable[..., AppContext], monkeypatch: pytest.MonkeyPatch) -> AppContext:
    monkeypatch.setattr(erasing, "GRACE_SECONDS", 0)
    return new_context()


@pytest.fixture
def me(project: str) -> Principal:
    return Principal(project, False, "key-1", "ada")


def count(context: AppContext, record: type[Base]) -> int:
    with context.database.read() as session:
        return session.scalar(select(func.count()).select_from(record)) or 0


def stored(context: AppContext) -> list[str]:
    """The names of all content in the artifact store."""
    folder = Path(context.artifacts.url.removeprefix("file://"))
    return [path.name for path in folder.rglob("*") if path.is_file()]


def actions(context: AppContext) -> list[tuple[str, str | None]]:
    with context.database.read() as session:
        return [(event.type, event.key_name) for event in session.scalars(select(Event).order_by(Event.id))]


def an_ended_batch(context: AppContext, source: File) -> Batch:
    batch = a_running_batch(context, source)
    end(context, batch)
    return batch


def ended_ago(context: AppContext, batch: Batch, seconds: int) -> None:
    with context.database.write() as session:
        session.execute(update(Batch).where(Batch.id == batch.id).values(completed_at=int(time.time()) - seconds))


def other_project(context: AppContext) -> str:
    with context.database.write() as session:
        keys.create(session, "other", admin=True)
        return projects.named(session, "other")


def test_a_job_is_deleted_with_all_that_it_had_once_it_has_ended(
    context: AppContext, me: Principal, job: Job, new_schedule: Callable[..., Schedule]
) -> None:
    with context.database.write() as session:
        session.execute(update(Job).values(options={"prompt": CANARY}))
    with pytest.raises(ConflictError, match="cancel it first") as refusal:
        erasing.delete(context, me, JOBS, job.id)
    assert refusal.value.code == "job_not_ended"
    old_jobs.end(context, job)
    hashes = old_jobs.contents(context)
    with context.database.read() as session:
        (batch_id,) = session.scalars(select(Batch.id))
    with pytest.raises(ConflictError, match=r"stage '.+' of job '.+'; delete the job"):
        erasing.delete(context, me, BATCHES, batch_id)
    erasing.delete(context, me, JOBS, job.id)
    assert {record.__tablename__: count(context, record) for record in old_jobs.GROWING if record is not Event} == {
        record.__tablename__: 0 for record in old_jobs.GROWING if record is not Event
    }
    assert actions(context) == [("job.deleted", "ada")]
    erasing.tick(context)
    assert not set(hashes.values()) & set(stored(context))
    assert count(context, ErasedContent) == 0
    if context.database.sqlite:
        assert not [file for file in Path(context.database.url.database or "").parent.glob("batchyard.db*")
                    if CANARY.encode() in file.read_bytes()]  # fmt: skip


def test_a_job_whose_answers_another_one_takes_is_not_deleted_under_it(
    context: AppContext, me: Principal, job: Job
) -> None:
    old_jobs.end(context, job)
    with context.database.write() as session:
        taker = old_jobs.start_job(session, me.project_id, answers_from=job.id)
    with pytest.raises(ConflictError, match=taker.id) as refusal:
        erasing.delete(context, me, JOBS, job.id)
    assert refusal.value.code == "job_needed"


def test_a_job_goes_with_those_that_it_has_started_and_not_before_they_have_ended(
    context: AppContext, me: Principal, job: Job
) -> None:
    old_jobs.end(context, job)
    with context.database.write() as session:
        child = old_jobs.start_job(session, me.project_id, parent_id=job.id, child_key="a")
    for part, code in ((child, "job_has_parent"), (job, "job_not_ended")):
        with pytest.raises(ConflictError) as refusal:
            erasing.delete(context, me, JOBS, part.id)
        assert refusal.value.code == code
    with context.database.write() as session:
        session.execute(update(Job).where(Job.id == child.id).values(status="cancelled", cancelled_at=1))
    erasing.delete(context, me, JOBS, job.id)
    assert count(context, Job) == 0


def test_an_input_goes_with_the_last_batch_that_needs_it_and_content_with_its_last_file(
    context: AppContext, me: Principal, upload: Upload
) -> None:
    source = upload(b"input")
    one, two = an_ended_batch(context, source), an_ended_batch(context, source)
    erasing.delete(context, me, BATCHES, one.id)
    erasing.tick(context)
    with context.database.read() as session:
        assert files.get(session, me.project_id, source.id).sha256 == source.sha256
    assert is_there(context, source.sha256)
    erasing.delete(context, me, BATCHES, two.id)
    same = upload(b"output")  # by somebody else, since then
    erasing.tick(context)
    with context.database.read() as session:
        assert files.find(session, me.project_id, source.id) is None
    assert not is_there(context, source.sha256)
    assert is_there(context, same.sha256)


def test_cached_answers_go_with_the_batch_that_computed_them_and_none_comes_later(
    context: AppContext, me: Principal, upload: Upload
) -> None:
    one, two = an_ended_batch(context, upload(b"one")), an_ended_batch(context, upload(b"two"))
    answer = cache.columns(b"{}", input_tokens=1, cached_tokens=0, output_tokens=1)
    with context.database.write() as session:
        cache.add(session, me.project_id, {f"{number:04}": answer for number in range(2 * cache.CHUNK)}, one.id)
        cache.add(session, me.project_id, {"b": answer}, two.id)
    erasing.delete(context, me, BATCHES, one.id)
    with context.database.write() as session:
        cache.add(session, me.project_id, {"c": answer}, one.id)  # by a worker that was slow
    with context.database.read() as session:
        assert session.scalars(select(CachedAnswer.key)).all() == ["b"]


def test_another_project_can_delete_nothing(context: AppContext, me: Principal, upload: Upload) -> None:
    batch = an_ended_batch(context, upload(b"input"))
    with pytest.raises(NotFoundError):
        erasing.delete(context, Principal(other_project(context), True, "key-2", "eve"), BATCHES, batch.id)
    assert count(context, Batch) == 1


def test_content_that_could_not_be_removed_is_removed_later(
    context: AppContext, me: Principal, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = upload(b"input")
    erasing.delete(context, me, BATCHES, an_ended_batch(context, source).id)

    def away(*_: Any) -> None:
        raise UnavailableError("the artifact store is away")

    with monkeypatch.context() as patch, pytest.raises(UnavailableError):
        patch.setattr(Artifacts, "collect", away)
        erasing.tick(context)
    assert is_there(context, source.sha256)
    erasing.tick(context)
    assert not is_there(context, source.sha256)
    assert count(context, ErasedContent) == 0


def test_content_that_was_stored_again_waits_for_its_record(
    new_context: Callable[..., AppContext], me: Principal, upload: Upload
) -> None:
    context = new_context()
    source = upload(b"input")
    erasing.delete(context, me, BATCHES, an_ended_batch(context, source).id)
    for name in stored(context):
        os.utime(context.artifacts.path(name), (0, 0))
    with context.database.write() as session:
        session.execute(update(ErasedContent).values(erased_at=0.0))
    context.artifacts.put(b"input")  # of a request whose transaction has not begun yet
    erasing.tick(context)
    assert [name for name in stored(context) if name == source.sha256]
    with context.database.read() as session:
        assert session.scalars(select(ErasedContent.sha256)).all() == [source.sha256]


def test_zero_retention_deletes_what_ended_so_many_minutes_ago_and_files_that_nothing_needs(
    context: AppContext, me: Principal, upload: Upload
) -> None:
    old, young = an_ended_batch(context, upload(b"old")), an_ended_batch(context, upload(b"young"))
    running, unused = a_running_batch(context, upload(b"running")), upload(b"unused")
    ended_ago(context, old, 6 * MINUTE)
    ended_ago(context, young, 4 * MINUTE)
    with context.database.write() as session:
        session.execute(update(File).values(created_at=int(time.time()) - HALF_AN_HOUR))
    erasing.tick(context)
    assert count(context, Batch) == 3
    with context.database.write() as session:
        projects.update(session, me.project_id, cache_bytes=10**6)
        projects.update(session, me.project_id, zero_retention_minutes=5)
        with pytest.raises(RequestError, match="no result cache"):
            projects.update(session, me.project_id, cache_bytes=10**6)
        session.get_one(Project, me.project_id).cache_bytes = None
    erasing.tick(context)
    erasing.tick(context)
    with context.database.read() as session:
        assert sorted(session.scalars(select(Batch.id))) == sorted([young.id, running.id])
    assert not is_there(context, unused.sha256)
    assert ("batch.deleted", "zero retention") in actions(context)


def test_a_project_is_erased_whole_and_another_stays(
    context: AppContext, me: Principal, upload: Upload, new_schedule: Callable[..., Schedule]
) -> None:
    ended, running = an_ended_batch(context, upload(b"ended")), a_running_batch(context, upload(b"running"))
    schedule, unused = new_schedule(), upload(b"unused")
    with context.database.write() as session:
        webhooks.create(session, me.project_id, name="a", url="https://a.example/", event_types=["batch.cancelled"])
        with pytest.raises(ConflictError, match="no other project has an admin key"):
            erasure.begin(session, me, me.project_id)
    admin = Principal(other_project(context), True, "key-2", "eve")
    with context.database.write() as session:
        for _ in range(2):
            assert erasure.begin(session, admin, me.project_id).erasing_at is not None
        name = session.get_one(Project, me.project_id).name
        with pytest.raises(ConflictError, match="is being erased"):
            keys.create(session, name)
    erasing.tick(context)
    with context.database.write() as session:
        assert session.scalars(select(Batch.id)).all() == [running.id], ended.id
        batches.transition(session, running.id, "cancelling", "cancelled")
    erasing.tick(context)
    erasing.tick(context)
    with context.database.read() as session:
        assert session.scalars(select(Project.id)).all() == [admin.project_id]
        tables = [table for table in Base.metadata.sorted_tables if "project_id" in table.columns]
        owners = {table.name: set(session.scalars(select(table.c.project_id))) for table in tables}
    assert set().union(*owners.values()) == {admin.project_id}
    assert actions(context) == [("project.deleted", "eve")]
    assert not {schedule.input_sha256, unused.sha256} & set(stored(context))
    assert count(context, ErasedContent) == 0


@on_sqlite
def test_the_log_of_sqlite_is_emptied_though_others_read(context: AppContext, upload: Upload) -> None:
    upload(b"a")
    with context.database.read() as session:
        assert count(context, File) == 1
        session.scalars(select(File.id)).all()
        with context.database.write() as writer:
            writer.execute(update(File).values(filename="b"))
        assert not context.database.truncate_log(), "its snapshot needs it"
    assert context.database.truncate_log()
    assert Path(f"{context.database.url.database}-wal").stat().st_size == 0
