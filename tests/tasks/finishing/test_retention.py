"""What ended long ago is deleted, with all that hangs on it; what is unfinished never is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from batchyard.statuses import TERMINAL, TRANSITIONS
from store import batches, files, keys, schedules, sessions, webhooks
from store.deletion import retention
from store.records import (
    ApiKey,
    Artifact,
    Base,
    Batch,
    Delivery,
    Event,
    File,
    Project,
    ResultChunk,
    Schedule,
    ScheduleRun,
    Segment,
    WebSession,
    now,
)
from tasks.context import AppContext
from tasks.finishing import garbage

NewBatch = Callable[..., Batch]
DAY = 86400
LATER = 91 * DAY
GROWING: list[type[Base]] = [
    *(Batch, Segment, ResultChunk, Artifact, Event, Delivery, ScheduleRun, File, WebSession, ApiKey),
]
PATHS = [
    ["in_progress", "finalizing", "completed"],
    ["in_progress", "finalizing", "expired"],
    ["in_progress", "cancelling", "cancelled"],
    ["failed"],
]


def counts(context: AppContext) -> dict[str, int]:
    """Return the number of rows of each table that grows."""
    with context.database.read() as session:
        return {
            record.__tablename__: session.scalar(select(func.count()).select_from(record)) or 0 for record in GROWING
        }


def purge(context: AppContext, seconds: float = LATER) -> None:
    """Purge what is old when these seconds have passed."""
    garbage.purge(context, time.time() + seconds)


@pytest.fixture
def new_life(context: AppContext, project: str, new_batch: NewBatch) -> Callable[..., Batch]:
    """Makes a batch that went this way, with segments, answers, outputs, a run, and an event and its delivery."""
    with context.database.write() as session:
        for name in ("one", "two"):
            webhooks.create(session, project, name=name, url="https://example.com", event_types=["batch.late"])
        schedule = session.merge(
            Schedule(
                **{"id": "sched_1", "project_id": project, "name": "nightly", "cron": "* * * * *", "timezone": "UTC"},
                **{"input": {}, "input_sha256": "9" * 64, "batch": {}, "overlap": "allow", "catch_up": "latest"},
                **{"created_at": now()},
            )
        )

    def make(path: list[str], *, delivered: bool = True, segments: int = 2) -> Batch:
        batch = new_batch(*[1] * segments) if path[:1] == ["in_progress"] else new_batch()
        with context.database.write() as session:
            batches.set_sla(session, batch, "late")
            if delivered:
                session.execute(update(Delivery).values(state="delivered"))
            for segment_id in session.scalars(select(Segment.id).where(Segment.batch_id == batch.id)):
                session.add(
                    ResultChunk(batch_id=batch.id, segment_id=segment_id, sha256="7" * 64, created_at=time.time())
                )
            batches.add_artifact(session, batch, "output.jsonl", "8" * 64, 1, 1)
            schedules.add_run(session, schedule, "created", scheduled_at=None, missed_from=None, batch_id=batch.id)
            status = session.get_one(Batch, batch.id).status
            for following in path[1:] if status == "in_progress" else path:
                assert batches.transition(session, batch.id, status, following)
                status = following
            session.execute(update(File).where(File.id == batch.input_file_id).values(expires_at=batch.created_at + 30))
        return batch

    return make


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[-1])
def test_an_ended_batch_goes_with_all_that_hangs_on_it_and_not_a_day_before(
    context: AppContext, new_life: Callable[..., Batch], path: list[str]
) -> None:
    new_life(path)
    before = counts(context)
    assert path == ["failed"] or [name for name, count in before.items() if not count] == ["sessions"]
    purge(context, 29 * DAY)
    assert counts(context) == before
    purge(context, 31 * DAY)
    assert counts(context) == before | {"events": 0, "deliveries": 0}
    purge(context, 89 * DAY)
    assert counts(context) == before | {"events": 0, "deliveries": 0}
    purge(context)
    assert counts(context) == dict.fromkeys(before, 0) | {"api_keys": 1}


LIVES = st.lists(
    st.tuples(
        st.sampled_from(PATHS).flatmap(lambda path: st.integers(0, len(path)).map(lambda n: path[:n])), st.booleans()
    ),
    max_size=5,
)


@pytest.mark.long
@settings(max_examples=10)
@given(lives=LIVES)
def test_nothing_unfinished_is_purged_and_the_rest_is(
    context: AppContext, new_life: Callable[..., Batch], lives: list[tuple[list[str], bool]]
) -> None:
    batch_ids = {new_life(path, delivered=delivered).id for path, delivered in lives}
    with context.database.read() as session:
        unsent = set(session.scalars(select(Delivery.id).where(Delivery.state == "pending")))
        unsent_of = set(session.scalars(select(Event.batch_id).join(Delivery).where(Delivery.state == "pending")))
        unfinished = set(session.scalars(select(Batch.id).where(Batch.status.not_in(TERMINAL))))
    purge(context)
    with context.database.read() as session:
        remaining = set(session.scalars(select(Batch.id)))
        assert remaining & batch_ids == (unfinished | unsent_of) & batch_ids
        assert remaining == unfinished | unsent_of
        assert set(session.scalars(select(Delivery.id))) == unsent
        for record in (Segment, ResultChunk, Artifact, Event, ScheduleRun):
            assert set(session.scalars(select(record.batch_id))) <= remaining
        for batch in session.scalars(select(Batch)):
            planned = batch.in_progress_at is not None
            for record, number in ((Segment, 2 * planned), (ResultChunk, 2 * planned), (Artifact, 1), (ScheduleRun, 1)):
                of_batch = select(func.count()).select_from(record).where(record.batch_id == batch.id)
                assert session.scalar(of_batch) == number, record
            assert files.names(session, batch.project_id, [batch.input_file_id]) == {batch.input_file_id: "in.jsonl"}
    after = counts(context)
    purge(context)
    assert counts(context) == after


def test_each_transaction_deletes_a_few_rows_and_a_tick_goes_on_where_the_last_ended(
    context: AppContext, new_life: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS", 3)
    numbers, delete = [], retention.purge
    monkeypatch.setattr(retention, "purge", lambda *arguments: numbers.append(delete(*arguments)) or numbers[-1])
    for path in PATHS:
        new_life(path, segments=20)
    monkeypatch.setattr(garbage, "PURGE_SECONDS", 0.0)
    before = counts(context)
    purge(context)
    assert counts(context) == before, "its time is over"
    monkeypatch.setattr(garbage, "PURGE_SECONDS", 600.0)
    purge(context)
    assert max(numbers) == 3
    assert counts(context) == dict.fromkeys(before, 0) | {"api_keys": 1}


def test_content_of_what_was_purged_is_garbage(
    context: AppContext, new_batch: NewBatch, upload: Callable[[bytes], File]
) -> None:
    batch, content = new_batch(), upload(b"an answer")
    with context.database.write() as session:
        session.delete(session.get_one(File, content.id))
        batches.add_artifact(session, batch, "output.jsonl", content.sha256, content.bytes, 1)
        batches.reject(session, batch.id, [])
    path = Path(context.artifacts.path(content.sha256))
    os.utime(path, (0, 0))
    garbage.shard(context, content.sha256[:2])
    assert path.exists()
    purge(context)
    garbage.shard(context, content.sha256[:2])
    assert not path.exists()


def test_files_of_a_client_go_once_they_are_over_and_unless_a_schedule_names_them(
    context: AppContext, upload: Callable[[bytes], File], new_schedule: Callable[..., Schedule]
) -> None:
    kept, deleted, named = upload(b"kept"), upload(b"deleted"), upload(b"named")
    schedule = new_schedule(input={"file_id": named.id})
    with context.database.write() as session:
        for file in (deleted, named):
            files.delete(session, file.project_id, file.id)
    purge(context, 89 * DAY)
    assert counts(context)["files"] == 3
    purge(context)
    with context.database.write() as session:
        assert set(session.scalars(select(File.id))) == {kept.id, named.id}
        schedules.delete(session, schedule.project_id, schedule.id)
    purge(context)
    with context.database.read() as session:
        assert set(session.scalars(select(File.id))) == {kept.id}


def test_runs_that_made_no_batch_and_keys_and_sessions_that_are_over_go(
    context: AppContext, project: str, new_schedule: Callable[..., Schedule]
) -> None:
    schedule = new_schedule()
    with context.database.write() as session:
        schedules.add_run(session, schedule, "skipped", scheduled_at=1, missed_from=None)
        revoked = keys.create(session, "default")
        sessions.create(session, revoked.id)
        keys.revoke(session, revoked.id)
    purge(context, 89 * DAY)
    assert (counts(context)["api_keys"], counts(context)["schedule_runs"]) == (2, 1)
    purge(context)
    assert (counts(context)["api_keys"], counts(context)["sessions"], counts(context)["schedule_runs"]) == (1, 0, 0)
    with context.database.read() as session:
        assert session.get_one(Project, project)


def test_every_ended_status_has_a_time_that_purging_counts_from() -> None:
    assert {path[-1] for path in PATHS} == TERMINAL == {status for status in TRANSITIONS if not TRANSITIONS[status]}
