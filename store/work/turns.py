"""What waits for its turn to be validated or finished: of each project the oldest."""

import time
from collections.abc import Collection
from typing import Literal, NamedTuple

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from store.records import Artifact, Batch, Job

Noun = Literal["batch", "job"]
Step = Literal["validation", "finishing"]


_AT_STEPS = and_(
    func.json_array_length(Batch.post_process) > 0,
    func.coalesce(Batch.outcome, "") != "cancelled",
    select(Artifact.file_id).where(Artifact.batch_id == Batch.id).exists(),
)


class Waiting(NamedTuple):
    project_id: str
    noun: Noun
    id: str
    step: Step


def oldest(session: Session, step: Step) -> list[Waiting]:
    """Return the oldest of each project that waits for a step, is done by nobody, and has not failed."""
    return [
        Waiting(project_id, noun, work_id, step)
        for noun, (record, condition) in _waiting(step).items()
        for project_id, work_id in session.execute(
            select(record.project_id, func.min(record.id)).where(condition).group_by(record.project_id)
        )
    ]


def is_waiting(session: Session, step: Step, noun: Noun, work_id: str) -> bool:
    """True if nobody has begun this step of a batch or a job."""
    record, condition = _waiting(step)[noun]
    return session.scalar(select(record.id).where(condition, record.id == work_id)) is not None


def at_steps(session: Session, ids: Collection[str]) -> set[str]:
    """Return those of the batches that are merged and whose steps are next."""
    return set(session.scalars(select(Batch.id).where(Batch.id.in_(ids), _AT_STEPS)))


def has_failed(session: Session, noun: Noun, work_id: str) -> bool:
    """True if an attempt at a batch or a job has failed: its own message is the next one."""
    record = Batch if noun == "batch" else Job
    return session.scalar(select(record.attempt_error).where(record.id == work_id)) is not None


def count_unvalidated(session: Session, project_id: str) -> int:
    """Return how many batches and jobs of a project, that no job has started, were not validated yet."""
    batches = select(func.count()).where(
        Batch.project_id == project_id, Batch.status == "validating", ~Batch.planned, Batch.job_id.is_(None)
    )
    jobs = select(func.count()).where(Job.project_id == project_id, Job.status == "validating", Job.parent_id.is_(None))
    return sum(session.scalar(counted) or 0 for counted in (batches, jobs))


def _waiting(step: Step) -> dict[Noun, tuple[type[Batch] | type[Job], ColumnElement[bool]]]:
    """Return which batches and jobs wait for a step. A message says what may be finished, and runs a batch's steps."""
    if step == "validation":
        batches = and_(Batch.status.in_(("validating", "cancelling")), ~Batch.planned)
        jobs = Job.status == "validating"
    else:
        sent = time.time()
        batches = and_(
            Batch.status.in_(("finalizing", "cancelling")), Batch.planned, ~_AT_STEPS, Batch.lease_expires_at > sent
        )
        jobs = and_(Job.status == "finalizing", Job.lease_expires_at > sent)
    return {
        "batch": (Batch, and_(batches, Batch.holder.is_(None), Batch.attempt_error.is_(None))),
        "job": (Job, and_(jobs, Job.holder.is_(None), Job.attempt_error.is_(None))),
    }
