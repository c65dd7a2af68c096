"""Leases: who may work on a record now. Every write of a holder names the epoch it was given."""

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
    """Proof that `epoch` of one record was given to this holder. `held`: it was not given back."""

    record: type[Batch] | type[Segment]
    id: str | int
    epoch: int
    held: bool = True

    def renew(self, session: Session, seconds: float) -> None:
        """Hold it for `seconds` from now. Raises LeaseLost when the epoch is gone."""
        self._write(session, lease_expires_at=time.time() + seconds)

    def release(self, session: Session, pause: float = 0.0, **values: object) -> None:
        """Give it back; housekeeping looks at the record again after `pause` seconds. Raises LeaseLost."""
        self._write(session, holder=None, lease_expires_at=time.time() + pause, **values)
        self.held = False

    def guard(self, session: Session) -> None:
        """Raises LeaseLost unless the lease is still held; keeps it so until the transaction ends."""
        self._write(session, epoch=self.epoch)

    def _write(self, session: Session, **values: object) -> None:
        record = self.record
        statement = update(record).where(record.id == self.id, record.epoch == self.epoch, record.holder.is_not(None))
        if changed(session, statement.values(**values)) != 1:
            raise LeaseLost(f"{record.__tablename__} {self.id}: epoch {self.epoch} is gone")


def holders(session: Session) -> set[str]:
    """Who holds a lease on a segment or on a batch's own work."""
    segments = select(Segment.holder).where(Segment.state == "running", Segment.holder.is_not(None))
    at_work = Batch.status.in_(("validating", "finalizing", "cancelling"))
    batches = select(Batch.holder).where(at_work, Batch.holder.is_not(None))
    return {str(holder) for statement in (segments, batches) for holder in session.scalars(statement)}


def end_leases(session: Session, holders: Collection[str]) -> None:
    """Let the leases of these holders run out now."""
    for record in (Segment, Batch):
        session.execute(update(record).where(record.holder.in_(holders)).values(lease_expires_at=0))


def acquire_batch(session: Session, batch_id: str, holder: str, seconds: float) -> Lease | None:
    """A lease on a batch's own work (validation, finishing), or None while somebody else holds it."""
    moment = time.time()
    free = or_(Batch.holder.is_(None), Batch.lease_expires_at < moment)
    epoch = session.scalar(
        update(Batch)
        .where(Batch.id == batch_id, free)
        .values(epoch=Batch.epoch + 1, holder=holder, lease_expires_at=moment + seconds)
        .returning(Batch.epoch)
    )
    return None if epoch is None else Lease(Batch, batch_id, epoch)
