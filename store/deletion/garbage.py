"""Garbage: find the content that records still reference, and delete the records of old result chunks."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, or_, select
from sqlalchemy.orm import Session

from batchyard.statuses import JOB_RUNNING, RUNNING, TERMINAL
from store import files
from store.database import changed
from store.records import Batch, File, Job, JobChunk, ResultChunk, Schedule, Segment, UploadPart
from store.work.lifecycle import ended_at


def referenced(session: Session, hashes: Sequence[str], live_at: float, results_at: float) -> set[str]:
    """Return the hashes (SHA-256) that a record references.

    A file counts if it expires after `live_at` (Unix seconds), since somebody may be reading it, or committing a batch
    of it. A job that ended after `results_at` keeps its input, items and plans, since its results may be amended.
    """
    statements = _references(live_at, results_at)
    return {sha256 for each in statements for sha256 in session.scalars(each.where(_column(each).in_(hashes)))}


def references_with(session: Session, prefix: str, live_at: float, results_at: float) -> set[str]:
    """Return all hashes with a prefix that a record references, see `referenced`."""
    chosen = (each.where(_column(each).between(prefix, f"{prefix}g")) for each in _references(live_at, results_at))
    return {sha256 for each in chosen for sha256 in session.scalars(each)}


def _column(statement: Select[Any]) -> ColumnElement[Any]:
    return statement.selected_columns[0]


def _references(live_at: float, results_at: float) -> Iterator[Select[Any]]:
    """Yield the statements that select the hashes of each column that references content, see `referenced`."""
    kept = _kept(results_at)
    of_running = select(Segment.plan_sha256).join(Batch, Batch.id == Segment.batch_id)
    of_kept_jobs = of_running.join(Job, Job.id == Batch.job_id)
    yield select(File.sha256).where(files.live(live_at))
    yield select(UploadPart.sha256)
    yield select(Batch.input_sha256).where(Batch.status.in_(RUNNING))
    yield select(Batch.plan_sha256).where(Batch.status.in_(RUNNING))
    yield select(Batch.seconds_sha256)
    yield select(Batch.rows_sha256)
    yield select(ResultChunk.sha256)
    yield select(Schedule.input_sha256)
    yield select(Job.input_sha256).where(kept)
    yield select(Job.items_sha256).where(kept)
    yield select(JobChunk.sha256)
    yield of_running.where(Batch.status.in_(RUNNING))
    yield of_kept_jobs.where(kept)


def forget_chunks(session: Session, hashes: Sequence[str], before: float) -> int:
    """Delete records of these chunks whose batch and job ended before `before`. Return their number."""
    of_kept_job = select(Job.id).where(Job.id == Batch.job_id, _kept(before))
    ended = select(Batch.id).where(
        Batch.id == ResultChunk.batch_id, Batch.status.in_(TERMINAL), before > ended_at(Batch), ~of_kept_job.exists()
    )
    kept = select(Job.id).where(Job.id == JobChunk.job_id, _kept(before))
    of_batches = delete(ResultChunk).where(ResultChunk.sha256.in_(hashes), ended.exists())
    of_jobs = delete(JobChunk).where(JobChunk.sha256.in_(hashes), ~kept.exists())
    options = {"synchronize_session": False}
    return sum(changed(session, each.execution_options(**options)) for each in (of_batches, of_jobs))


def _kept(results_at: float) -> ColumnElement[bool]:
    """Return the condition for jobs that run, or ended at `results_at` (Unix seconds) or later."""
    return or_(Job.status.in_(JOB_RUNNING), results_at <= ended_at(Job))
