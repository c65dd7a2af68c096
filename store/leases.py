"""Leases: one holder at a time works on a record. A holder's writes name the epoch of its lease."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from batchyard.errors import LeaseLost
from store.database import changed
from store.records import Batch, Segment


@dataclass
class Lease:
    """The right to work on a record in one epoch. `held` is False after `release`."""

    record: type[Batch] | type[Segment]
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
    """Return the holders of leases on segments and on batches."""
    segments = select(Segment.holder).where(Segment.state == "running", Segment.holder.is_not(None))
    active = Batch.status.in_(("validating", "finalizing", "cancelling"))
    batches = select(Batch.holder).where(active, Batch.holder.is_not(None))
    return {str(holder) for statement in (segments, batches) for holder in session.scalars(statement)}


def end_leases(session: Session, holders: Collection[str]) -> None:
    """Make the leases of these holders expire now."""
    for record in (Segment, Batch):
        session.execute(update(record).where(record.holder.in_(holders)).values(lease_expires_at=0))


def acquire_batch(session: Session, batch_id: str, holder: str, seconds: float) -> Lease | None:
    """Acquire the lease on a batch's validation or finishing. None if another holder has it."""
    now = time.time()
    free = or_(Batch.holder.is_(None), Batch.lease_expires_at < now)
    epoch = session.scalar(
        update(Batch)
        .where(Batch.id == batch_id, free)
        .values(epoch=Batch.epoch + 1, holder=holder, lease_expires_at=now + seconds)
        .returning(Batch.epoch)
    )
    return None if epoch is None else Lease(Batch, batch_id, epoch)
