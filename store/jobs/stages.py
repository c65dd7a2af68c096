"""Stages: the open batches of a job, and the chunks of its items.

An open batch gets segments while others of it run. Every write here belongs into a transaction that guards the job's
lease: one holder at a time extends a job's batches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from batchyard.errors import ConflictError
from store import batches
from store.database import changed
from store.records import Batch, Job, JobStage, Segment, new_id, now
from store.speeds import RequestClass


class PlannedJobSegment(NamedTuple):
    """A segment of a job's plan file. `bytes` counts its request bodies."""

    model: str
    requests: int
    bytes: int
    request_class: RequestClass
    plan_sha256: str
    row_group: int


def of_job(session: Session, job_id: str) -> list[JobStage]:
    """Return the stages of a job, by number."""
    return list(session.scalars(select(JobStage).where(JobStage.job_id == job_id).order_by(JobStage.number)))


def open_batch(session: Session, job: Job, number: int, name: str, endpoint: str) -> Batch:
    """Create a stage's open batch, in progress, and the stage if it is new.

    It is paused if the job is.
    """
    at = now()
    # The lease's guard holds the job's row: whoever pauses the job meanwhile waits, and finds this batch.
    pause = session.execute(select(Job.paused_at, Job.paused_by).where(Job.id == job.id)).one()
    batch = Batch(
        id=new_id("batch_"),
        project_id=job.project_id,
        job_id=job.id,
        stage=name,
        endpoint=endpoint,
        completion_window=job.completion_window,
        input_file_id="",
        input_sha256="",
        status="in_progress",
        planned=True,
        open=True,
        simulated=job.simulated,
        created_at=at,
        in_progress_at=at,
        expires_at=job.expires_at,
        due_at=job.due_at,
        infeasible=job.infeasible,
        paused_at=pause.paused_at,
        paused_by=pause.paused_by,
        output_expires_after=job.output_expires_after,
        lease_expires_at=time.time(),
    )
    session.add(batch)
    session.flush()
    session.merge(JobStage(job_id=job.id, number=number, name=name, batch_id=batch.id))
    session.flush()
    return batch


def extend(session: Session, batch_id: str, planned: Sequence[PlannedJobSegment]) -> None:
    """Add segments to an open batch, numbered on from its last one, with the configurations of their models.

    Raises:
        ConflictError: the batch is not open any more, since its window has passed or its job was cancelled.
    """
    total = Batch.total + sum(segment.requests for segment in planned)
    # The first statement: its row lock keeps the batch open until these segments are part of it.
    if not changed(session, update(Batch).where(Batch.id == batch_id, Batch.open).values(total=total)):
        raise ConflictError(f"Batch '{batch_id}' is not open any more.")
    last = session.scalar(select(func.max(Segment.number)).where(Segment.batch_id == batch_id))
    first = 0 if last is None else last + 1
    session.add_all(
        Segment(batch_id=batch_id, number=number, **segment._asdict()) for number, segment in enumerate(planned, first)
    )
    _add_models(session, batch_id, [segment.model for segment in planned])
    session.flush()


def _add_models(session: Session, batch_id: str, names: Sequence[str]) -> None:
    """Copy the configurations of models from a job to its batch. The batch keeps those that it has."""
    of_batch, of_job = session.execute(
        select(Batch.models, Job.models).join(Job, Job.id == Batch.job_id).where(Batch.id == batch_id)
    ).one()
    models = of_batch | {name: of_job[name] for name in names if name not in of_batch}
    if models != of_batch:
        values = {"models": models, "model": batches.only_model(models)}
        session.execute(update(Batch).where(Batch.id == batch_id).values(**values))


def seal(session: Session, batch_id: str) -> None:
    """Close a batch: it gets no more segments, and ends when all that it has are done."""
    session.execute(update(Batch).where(Batch.id == batch_id).values(open=False))


def cancel_batches(session: Session, job_id: str) -> None:
    """Request that all batches of a job in progress stop.

    Their answers are kept. Those that end anyway do so.
    """
    for batch in session.scalars(select(Batch).where(Batch.job_id == job_id, Batch.status == "in_progress")).all():
        batches.request_cancel(session, batch)
