"""Retention: delete the records of what ended long ago, a few rows per transaction.

What is unfinished stays, and so does what it needs: a delivery that may still be sent keeps its event, an event keeps
its batch or job, and these and a schedule keep their input files. The batches of a job go with it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, and_, delete, inspect, or_, select, true, tuple_
from sqlalchemy.orm import Session

from batchyard.statuses import TERMINAL
from store.database import changed
from store.intake import uploads
from store.keys import NO_SECRET
from store.records import (
    ApiKey,
    Append,
    AppendedId,
    Artifact,
    Base,
    Batch,
    Delivery,
    Event,
    File,
    FileUpload,
    Job,
    JobArtifact,
    JobChunk,
    JobReply,
    JobStage,
    ResultChunk,
    Schedule,
    ScheduleRun,
    Segment,
    UploadPart,
    WebSession,
    first_id,
)
from store.work.file_groups import OF_NO_WORK
from store.work.lifecycle import ended_at

ROWS = 500
"""Most rows that one transaction deletes."""
BATCHES = 100
"""Batches, or jobs, that are deleted together."""
UNUSED = and_(OF_NO_WORK, ~select(Schedule.id).where(Schedule.input_sha256 == File.sha256).exists())
"""The condition for files that no batch, job or schedule needs."""


class Old(NamedTuple):
    """Rows of a table that may be deleted: `ended`, and `free` if no other row needs them."""

    record: type[Base]
    ended: ColumnElement[bool]
    free: ColumnElement[bool] = true()


# Ids sort by creation, so the primary key finds old rows. No statement joins large tables: with the statistics of a
# table that has just been filled, PostgreSQL would take minutes for it.


def events(before: float) -> list[Old]:
    """Return finished events and deliveries older than `before`. Clients' actions stay with their work."""
    batch_ended = select(Batch.id).where(Batch.id == Event.batch_id, Batch.status.in_(TERMINAL))
    job_ended = select(Job.id).where(Job.id == Event.job_id, Job.status.in_(TERMINAL))
    ended = or_(batch_ended.exists(), job_ended.exists())
    deliveries = select(Delivery.id).where(Delivery.event_id == Event.id)
    return [
        Old(Delivery, and_(Delivery.id < first_id("dlv_", before), Delivery.state.in_(("delivered", "failed")))),
        Old(
            Event, and_(Event.id < first_id("evt_", before), Event.key_id.is_(None)), and_(ended, ~deliveries.exists())
        ),
    ]


def work(session: Session, record: type[Batch] | type[Job], before: float) -> list[Old]:
    """Return the next batches or jobs that ended before `before` (Unix seconds), after all that refers to them."""
    owner, prefix = (Event.batch_id, "batch_") if record is Batch else (Event.job_id, "job_")
    needed = select(Event.id).where(owner == record.id, Event.key_id.is_(None))
    ended = and_(record.id < first_id(prefix, before), record.status.in_(TERMINAL), before > ended_at(record))
    if record is Batch:
        ended = and_(ended, Batch.job_id.is_(None))
    ids = session.scalars(select(record.id).where(ended, ~needed.exists()).limit(BATCHES)).all()
    if not ids:
        return []
    if record is Batch:
        return with_references(ids, [])
    return with_references(session.scalars(select(Batch.id).where(Batch.job_id.in_(ids))).all(), ids)


def with_references(batch_ids: Sequence[str], job_ids: Sequence[str]) -> list[Old]:
    """Return batches and jobs, after all that refers to them."""
    of_batches = (AppendedId, Append, ResultChunk, Segment, Artifact, ScheduleRun, Event)
    of_jobs = (JobStage, JobChunk, JobReply, JobArtifact, ScheduleRun, Event)
    return [
        *(Old(record, record.job_id.in_(job_ids)) for record in of_jobs),
        *(Old(record, record.batch_id.in_(batch_ids)) for record in of_batches),
        Old(Batch, Batch.id.in_(batch_ids)),
        Old(Job, Job.id.in_(job_ids)),
    ]


def others(now: float, before: float) -> list[Old]:
    """Return files, uploads, runs that created nothing and keys that were over before `before`.

    And sessions, and parts of uploads, that are over at `now`; custom_ids of batches that are open no more; and what
    happened, or clients did, to anything but batches and jobs before `before`.
    """
    output = and_(File.id < first_id("file-", before), File.purpose == "batch_output")  # of what was deleted
    without = and_(ScheduleRun.batch_id.is_(None), ScheduleRun.job_id.is_(None))
    signed_in = select(WebSession.key_id).where(WebSession.key_id == ApiKey.id)
    closed = select(Batch.id).where(Batch.id == AppendedId.batch_id, ~Batch.open)
    parts = select(UploadPart.id).where(UploadPart.upload_id == FileUpload.id)
    return [
        Old(File, File.expires_at < before, UNUSED),
        Old(File, output, UNUSED),
        Old(ScheduleRun, and_(ScheduleRun.id < first_id("run_", before), without)),
        Old(
            Event,
            and_(Event.id < first_id("evt_", before), Event.batch_id.is_(None), Event.job_id.is_(None)),
            ~select(Delivery.id).where(Delivery.event_id == Event.id).exists(),
        ),
        Old(WebSession, WebSession.expires_at <= now),
        # A revoked user has no access for as long as their groups name them: only keys with a secret go.
        Old(ApiKey, and_(ApiKey.revoked_at < before, ApiKey.secret_sha256 != NO_SECRET), ~signed_in.exists()),
        Old(AppendedId, closed.exists()),
        Old(UploadPart, uploads.abandoned(now)),
        Old(FileUpload, FileUpload.expires_at < before, ~parts.exists()),
    ]


def find(session: Session, old: Old) -> Sequence[Row[Any]]:
    """Return the primary keys of at most ROWS old rows."""
    return session.execute(select(*inspect(old.record).primary_key).where(old.ended, old.free).limit(ROWS)).all()


def purge(session: Session, old: Old, keys: Sequence[Row[Any]]) -> int:
    """Delete the rows with these primary keys that are still old. Return their number."""
    chosen = tuple_(*inspect(old.record).primary_key).in_([tuple(key) for key in keys])
    return changed(session, delete(old.record).where(chosen, old.ended).execution_options(synchronize_session=False))
