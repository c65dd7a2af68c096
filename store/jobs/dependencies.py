"""Dependencies: what a waiting job waits for, and the ways in which it goes on."""

import time
from collections.abc import Collection, Sequence
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from store import batches
from store.jobs import lifecycle
from store.records import Batch, File, Job
from store.work.lifecycle import MESSAGE_SECONDS

When = Literal["afterok", "afternotok", "afterany"]
MAX_DEPENDENCIES = 16
"""Jobs and batches that one job may wait for."""


def find_artifact(session: Session, project_id: str, owner_id: str, name: str) -> File | None:
    """Return the artifact of that name of an ended batch or job of the project, or None."""
    find = lifecycle.find_artifact if owner_id.startswith("job_") else batches.find_artifact
    return find(session, project_id, owner_id, name)


def waiting(session: Session) -> Sequence[Job]:
    return session.scalars(select(Job).where(Job.status == "waiting").order_by(Job.id)).all()


def statuses(session: Session, project_id: str, ids: Collection[str]) -> dict[str, str]:
    by_id: dict[str, str] = {}
    for record in (Job, Batch):
        statement = select(record.id, record.status).where(record.id.in_(ids), record.project_id == project_id)
        by_id |= dict(session.execute(statement).all())
    return by_id


def release(session: Session, job: Job, **values: Any) -> bool:
    """Begin to validate a waiting job, with these columns. False if it waits no more."""
    at = time.time() + MESSAGE_SECONDS
    return lifecycle.transition(session, job.id, "waiting", "validating", lease_expires_at=at, **values)


def fail(session: Session, job: Job, message: str) -> bool:
    """Cancel a waiting job whose dependencies can no longer come true. False if it waits no more."""
    errors = [{"code": "dependency_failed", "line": None, "message": message, "param": "depends_on"}]
    values: dict[str, Any] = {"outcome": "cancelled", "errors": errors, "lease_expires_at": time.time()}
    return lifecycle.transition(session, job.id, "waiting", "cancelling", **values)
