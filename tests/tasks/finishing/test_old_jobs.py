"""What an ended job's results are made of stays for a while, and its records go last, with all that hangs on them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from batchyard.statuses import JOB_TRANSITIONS, TERMINAL
from store import files, webhooks
from store.artifacts import SHARDS
from store.jobs import chunk_records, lifecycle
from store.records import (
    Artifact,
    Base,
    Batch,
    Delivery,
    Event,
    File,
    Job,
    JobArtifact,
    JobChunk,
    JobReply,
    JobStage,
    ResultChunk,
    Schedule,
    ScheduleRun,
    Segment,
)
from tasks.context import AppContext
from tasks.finishing import finalize, garbage
from tests.support.jobs import ask, open_stage, seal, start_job
from tests.support.planned import answers, finish_segment

HOUR, DAY = 3600, 86400
KEPT = 2 * DAY
GROWING: list[type[Base]] = [
    *(Job, JobStage, JobChunk, JobReply, JobArtifact, Batch, Segment, ResultChunk, Artifact, Event, Delivery),
    *(ScheduleRun, File),
]


@pytest.fixture
def context(new_context: Callable[..., AppContext]) -> AppContext:
    return new_context(garbage_grace_seconds=HOUR, results_seconds=KEPT)


@pytest.fixture
def job(
    context: AppContext, project: str, upload: Callable[[bytes], File], new_schedule: Callable[..., Schedule]
) -> Job:
    """A job in progress whose only stage has ended, with all that a job may have."""
    source, schedule = upload(b"rows"), new_schedule()
    with context.database.write() as session:
        webhooks.create(session, project, name="one", url="https://example.com", event_types=["job.late"])
        made = start_job(session, project, total=1, input_file_id=source.id, input_sha256=source.sha256)
        made.items_sha256 = context.artifacts.put(b"items")
        batch = open_stage(session, made)
        chunk_records.add(session, made.id, "result", context.artifacts.put(b"job chunk"), 1)
        reply = {"position": 0, "life": 1, "turn": 1, "kind": "resolve", "body": {"text": "four"}, "created_at": 1}
        session.add(JobReply(job_id=made.id, **reply))
        session.add(
            ScheduleRun(
                **{"id": "run_0", "project_id": project, "schedule_id": schedule.id, "state": "created"},
                **{"job_id": made.id, "created_at": 1},
            )
        )
        lifecycle.set_sla(session, made, "late")
        session.execute(update(Delivery).values(state="delivered"))
        files.delete(session, project, source.id)
    ask(context, batch, {1: "one"})
    seal(context, batch)
    finish_segment(context, batch, answers([1]))
    with context.database.write() as session:
        session.execute(update(Batch).values(status="finalizing", outcome="completed"))
    assert finalize.merge(context, batch.id, "here/1/task")
    finalize.end(context, batch.id, "here/1/task")
    return made


def end(context: AppContext, job: Job) -> None:
    content = context.artifacts.put(b"result lines")
    with context.database.write() as session:
        lifecycle.transition(session, job.id, "in_progress", "finalizing", outcome="completed")
        lifecycle.transition(session, job.id, "finalizing", "completed")
        lifecycle.add_artifact(session, session.get_one(Job, job.id), "results.jsonl", content, 12, 1)


def contents(context: AppContext) -> dict[str, str]:
    """The SHA-256 of the contents that a job's results are made of, by what they are."""
    with context.database.read() as session:
        job = session.query(Job).one()
        hashes = {
            "input": job.input_sha256,
            "items": job.items_sha256,
            "plan": session.scalar(select(Segment.plan_sha256)),
            "answers": session.scalar(select(ResultChunk.sha256)),
            "results": session.scalar(select(JobChunk.sha256)),
        }
    assert all(hashes.values())
    return {name: str(sha256) for name, sha256 in hashes.items()}


def present(context: AppContext, hashes: dict[str, str]) -> set[str]:
    return {name for name, sha256 in hashes.items() if Path(context.artifacts.path(sha256)).exists()}


def collect_after(context: AppContext, seconds: int) -> None:
    """Let time pass for all content and for the ends of batches and jobs, and collect garbage."""
    for path in (path for path in Path(context.artifacts.url.removeprefix("file://")).rglob("*") if path.is_file()):
        at = path.stat().st_mtime - seconds
        os.utime(path, (at, at))
    with context.database.write() as session:
        for record in (Job, Batch):
            session.execute(update(record).values(completed_at=record.completed_at - seconds))
        session.execute(update(File).values(expires_at=File.expires_at - seconds))
    for shard in SHARDS:
        garbage.shard(context, shard)


def test_what_a_job_is_made_of_stays_until_its_results_have_been_there_for_a_while(
    context: AppContext, job: Job
) -> None:
    hashes = contents(context)
    collect_after(context, 5 * DAY)  # its batch ended that long ago
    assert present(context, hashes) == hashes.keys()
    end(context, job)
    collect_after(context, KEPT - HOUR)
    assert present(context, hashes) == hashes.keys()
    collect_after(context, 2 * HOUR)
    assert present(context, hashes) == set()
    with context.database.read() as session:
        ((_, file),) = lifecycle.artifacts(session, [job.id])[job.id]
        output = session.scalars(select(File.sha256).join(Artifact, Artifact.file_id == File.id)).first()
    assert present(context, {"artifact": file.sha256, "output": output or ""}) == {"artifact", "output"}


def counts(context: AppContext) -> dict[str, int]:
    with context.database.read() as session:
        return {
            record.__tablename__: session.scalar(select(func.count()).select_from(record)) or 0 for record in GROWING
        }


def purge(context: AppContext, seconds: float) -> None:
    garbage.purge(context, time.time() + seconds)


def test_an_ended_job_goes_with_all_that_hangs_on_it_and_not_a_day_before(context: AppContext, job: Job) -> None:
    end(context, job)
    before = counts(context)
    assert [name for name, count in before.items() if not count] == []
    purge(context, 29 * DAY)
    assert counts(context) == before
    purge(context, 89 * DAY)
    assert counts(context) == before | {"events": 0, "deliveries": 0}
    purge(context, 91 * DAY)
    assert counts(context) == dict.fromkeys(before, 0)


def test_a_job_that_runs_keeps_its_ended_batches_and_its_input(context: AppContext, job: Job) -> None:
    before = counts(context)
    purge(context, 91 * DAY)
    assert counts(context) == before | {"deliveries": 0}


def test_an_event_that_is_still_to_be_sent_keeps_its_job(context: AppContext, job: Job) -> None:
    end(context, job)
    with context.database.write() as session:
        session.execute(update(Delivery).values(state="pending"))
    purge(context, 91 * DAY)
    kept = counts(context)
    assert (kept["jobs"], kept["batches"], kept["events"], kept["deliveries"]) == (1, 1, 1, 1)


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_every_ended_status_has_a_time_that_deletion_counts_from(context: AppContext, job: Job, status: str) -> None:
    before = next(before for before, following in sorted(JOB_TRANSITIONS.items()) if status in following)
    with context.database.write() as session:
        session.execute(update(Job).values(status=before))
        assert lifecycle.transition(session, job.id, before, status)
    purge(context, 91 * DAY)
    purge(context, 91 * DAY)
    assert counts(context)["jobs"] == 0
