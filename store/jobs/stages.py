"""Stages: the open batches of a job, and the chunks of its items.

An open batch gets segments while others of it run. Every write here belongs into a transaction that guards the job's
lease: one holder at a time extends a job's batches.
"""

import time
from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from batchyard.statuses import PAUSABLE
from store import batches
from store.intake import appends
from store.records import Batch, Job, JobStage, Segment, added, new_id, now
from store.work import traces

_INHERITED = (
    *("project_id", "completion_window", "simulated", "output_expires_after"),
    *("expires_at", "due_at", "infeasible"),
)
"""Columns that a stage's batch has from its job."""


def of_job(session: Session, job_id: str) -> list[JobStage]:
    """Return the stages of a job, by number."""
    return list(session.scalars(select(JobStage).where(JobStage.job_id == job_id).order_by(JobStage.number)))


def open_batch(session: Session, job: Job, number: int, name: str, endpoint: str) -> Batch:
    """Create a stage's batch, paused if the job is, and a new stage."""
    at = now()
    # The lease's guard holds the job's row: whoever pauses the job meanwhile waits, and finds this batch.
    pause = session.execute(select(Job.paused_at, Job.paused_by).where(Job.id == job.id)).one()
    batch = Batch(
        id=new_id("batch_"),
        job_id=job.id,
        stage=name,
        traceparent=str(traces.place(job)),
        endpoint=endpoint,
        input_file_id="",
        input_sha256="",
        status="in_progress",
        planned=True,
        open=True,
        created_at=at,
        in_progress_at=at,
        lease_expires_at=time.time(),
        **{name: getattr(job, name) for name in _INHERITED},
        **pause._mapping,
    )
    added(session, batch)
    session.merge(JobStage(job_id=job.id, number=number, name=name, batch_id=batch.id))
    session.flush()
    return batch


def extend(session: Session, batch_id: str, added: Sequence[Segment]) -> None:
    """Add segments to a batch, with its job's configurations. Raises ConflictError if it is not open."""
    models = session.execute(select(Job.models).join(Batch, Batch.job_id == Job.id).where(Batch.id == batch_id))
    appends.extend(session, batch_id, added, models.scalar_one())


def seal(session: Session, batch_id: str) -> None:
    """Close a batch: it gets no more segments, and ends when all that it has are done."""
    session.execute(update(Batch).where(Batch.id == batch_id).values(open=False))


def pause(session: Session, job: Job, by: str) -> None:
    """Pause a job and its batches. The caller holds the job's row."""
    job.paused_at, job.paused_by = now(), by
    of_job = update(Batch).where(Batch.job_id == job.id, Batch.status.in_(PAUSABLE))
    session.execute(of_job.values(paused_at=job.paused_at, paused_by=by))


def cancel_batches(session: Session, job_id: str) -> None:
    """Request that all batches of a job in progress stop. Their answers are kept."""
    for batch in session.scalars(select(Batch).where(Batch.job_id == job_id, Batch.status == "in_progress")).all():
        batches.request_cancel(session, batch)
