"""Work: a project's jobs, and its batches that are no stage of one, in one list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from batchyard.errors import RequestError
from batchyard.statuses import JOB_RUNNING, RUNNING, TERMINAL
from store.jobs.records import Job
from store.records import Batch

Work: TypeAlias = Batch | Job


def unfinished(session: Session, project_id: str) -> int:
    """Return how much of the project's work has not ended."""
    batches = select(func.count()).select_from(Batch).where(_batches(project_id), Batch.status.in_(RUNNING))
    jobs = select(func.count()).select_from(Job).where(Job.project_id == project_id, Job.status.in_(JOB_RUNNING))
    return (session.scalar(batches) or 0) + (session.scalar(jobs) or 0)


def running(session: Session, project_id: str, *, limit: int) -> list[Work]:
    """Return the work that has not ended, earliest due first."""
    batches = select(Batch).where(_batches(project_id), Batch.status.in_(RUNNING))
    jobs = select(Job).where(Job.project_id == project_id, Job.status.in_(JOB_RUNNING))
    work: list[Work] = [
        *session.scalars(batches.order_by(Batch.due_at, Batch.id).limit(limit)),
        *session.scalars(jobs.order_by(Job.due_at, Job.id).limit(limit)),
    ]
    return sorted(work, key=lambda record: (record.due_at, _age(record.id)))[:limit]


def ended(session: Session, project_id: str, *, after: str | None, limit: int) -> tuple[Sequence[Work], bool]:
    """Return the work that has ended after the one with id `after`, newest first, and True if there is more.

    Raises:
        RequestError: `after` is no work of the project.
    """
    batches = select(Batch).where(_batches(project_id), Batch.status.in_(TERMINAL))
    jobs = select(Job).where(Job.project_id == project_id, Job.status.in_(TERMINAL))
    if after is not None:
        if not _exists(session, project_id, after):
            raise RequestError(f"Invalid 'after': no object with id '{after}'.", code="invalid_value", param="after")
        batches = batches.where(Batch.id < f"batch_{_age(after)}")
        jobs = jobs.where(Job.id < f"job_{_age(after)}")
    work: list[Work] = [
        *session.scalars(batches.order_by(Batch.id.desc()).limit(limit + 1)),
        *session.scalars(jobs.order_by(Job.id.desc()).limit(limit + 1)),
    ]
    work.sort(key=lambda record: _age(record.id), reverse=True)
    return work[:limit], len(work) > limit


def _batches(project_id: str) -> ColumnElement[bool]:
    return and_(Batch.project_id == project_id, Batch.job_id.is_(None))


def _age(work_id: str) -> str:
    """Return the part of an id that sorts by its creation, whatever it is of."""
    return work_id.partition("_")[2]


def _exists(session: Session, project_id: str, work_id: str) -> bool:
    record = Job if work_id.startswith("job_") else Batch
    statement = select(record.id).where(record.project_id == project_id, record.id == work_id)
    return session.scalar(statement) is not None
