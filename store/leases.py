"""Leases: one holder at a time works on a record, and writes under its lease's epoch."""

import functools
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, case, or_, select, update
from sqlalchemy.orm import Session

from batchyard.backoff import Backoff
from batchyard.errors import LeaseLost
from batchyard.statuses import JOB_RUNNING
from store.database import changed
from store.records import Batch, Job, Segment

ATTEMPTS = 10
"""A batch or a job ends after so many failures in a row of its validation or finishing."""
LOST = "the worker that did it was lost"


@dataclass
class Lease:
    """The right to work on a record in one epoch. `held` is False after `release`."""

    record: type[Batch] | type[Segment] | type[Job]
    id: str | int
    epoch: int
    held: bool = True

    def renew(self, session: Session, seconds: float) -> None:
        """Extend the lease to `seconds` from now. Raises LeaseLost if the epoch is over."""
        self._write(session, lease_expires_at=time.time() + seconds)

    def release(self, session: Session, pause: float = 0.0, **values: object) -> None:
        """Give the lease back. Housekeeping checks the record again after `pause` seconds. Raises LeaseLost."""
        self._write(session, holder=None, lease_expires_at=time.time() + pause, **values)
        self.held = False

    def guard(self, session: Session) -> None:
        """Raise LeaseLost unless the lease is still held. It stays held until the transaction ends."""
        self._write(session, epoch=self.epoch)

    def _write(self, session: Session, **values: object) -> None:
        record = self.record
        statement = update(record).where(record.id == self.id, record.epoch == self.epoch, record.holder.is_not(None))
        if changed(session, statement.values(**values)) != 1:
            raise LeaseLost(f"{record.__tablename__} {self.id}: epoch {self.epoch} is gone")


def holders(session: Session) -> set[str]:
    segments = select(Segment.holder).where(Segment.state == "running", Segment.holder.is_not(None))
    active = Batch.status.in_(("validating", "finalizing", "cancelling"))
    batches = select(Batch.holder).where(active, Batch.holder.is_not(None))
    jobs = select(Job.holder).where(Job.status.in_(JOB_RUNNING), Job.holder.is_not(None))
    return {str(holder) for statement in (segments, batches, jobs) for holder in session.scalars(statement)}


def end_leases(session: Session, holders: Collection[str]) -> None:
    for record in (Segment, Batch, Job):
        session.execute(update(record).where(record.holder.in_(holders)).values(lease_expires_at=0))


def end_all(session: Session) -> None:
    """Make all leases expire now, and what is promised to a message: nobody holds anything, and no message comes."""
    for record in (Segment, Batch, Job):
        session.execute(update(record).where(record.lease_expires_at > time.time()).values(lease_expires_at=0))


def revoke_job(session: Session, job_id: str, epoch: int) -> bool:
    """End a lease of a stuck holder, without an attempt. False if another has a later one."""
    last = or_(Job.epoch == epoch, Job.holder.is_(None))
    return bool(changed(session, update(Job).where(Job.id == job_id, last).values(**_revoked())))


def give_back_jobs(session: Session, process: str) -> None:
    """End all leases on jobs that a process holds, as `revoke_job` does. `process`: how their names begin."""
    session.execute(update(Job).where(Job.holder.startswith(process, autoescape=True)).values(**_revoked()))


def _revoked() -> dict[str, Any]:
    return {"epoch": Job.epoch + 1, "holder": None, "lease_expires_at": time.time()}


def _acquire(
    record: type[Batch] | type[Job], session: Session, record_id: str, holder: str, seconds: float
) -> Lease | None:
    now = time.time()
    free = or_(record.holder.is_(None), record.lease_expires_at < now)
    epoch = session.scalar(
        update(record)
        .where(record.id == record_id, free)
        .values(epoch=record.epoch + 1, holder=holder, lease_expires_at=now + seconds)
        .returning(record.epoch)
    )
    return None if epoch is None else Lease(record, record_id, epoch)


acquire_batch, acquire_job = functools.partial(_acquire, Batch), functools.partial(_acquire, Job)


def claim(session: Session, record: type[Batch] | type[Job], condition: ColumnElement[bool], pause: float) -> list[str]:
    """Claim batches or jobs with that condition whose lease has run out, for `pause` seconds. Return their ids."""
    at = time.time()
    lost = record.holder.is_not(None)  # an attempt, so that work that kills its worker ends too
    statement = (
        update(record)
        .where(condition, record.lease_expires_at < at)
        .values(
            lease_expires_at=at + pause,
            holder=None,
            epoch=case((lost, record.epoch + 1), else_=record.epoch),
            attempts=case((lost, record.attempts + 1), else_=record.attempts),
            attempt_error=case((lost, LOST), else_=record.attempt_error),
        )
        .returning(record.id)
        .execution_options(synchronize_session=False)
    )
    return list(session.scalars(statement))


def record_failure(session: Session, lease: Lease, reason: str, *, counted: bool, backoff: Backoff) -> None:
    """Release a failed holder's batch or job for an attempt after a pause. Raises LeaseLost.

    A part of the deployment that is away does not count, see ATTEMPTS.
    """
    record = Job if lease.record is Job else Batch
    attempts = (session.scalar(select(record.attempts).where(record.id == lease.id)) or 0) + int(counted)
    lease.release(session, backoff.seconds(max(attempts, 1)), attempts=attempts, attempt_error=reason)
