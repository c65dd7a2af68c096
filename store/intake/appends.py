"""Appends: the requests that clients add to open batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from batchyard.errors import ConflictError
from store import batches
from store.intake import extension
from store.intake.extension import AddedSegment
from store.records import Append, AppendedId, Batch, new_id, now

_AT_ONCE = 500
"""Most custom_ids of one query."""


@dataclass(frozen=True)
class NewRequests:
    """Requests that a plan file has already, and their lines from `first_line` on.

    Attributes:
        size: bytes as they were sent.
        sha256: of these.
        models: the configuration of each model.
        refused: as `extension.extend` takes them.
        warnings: of the whole batch with these.
        digests: of the custom_ids.
    """

    first_line: int
    requests: int
    size: int
    sha256: str
    segments: Sequence[AddedSegment]
    models: Mapping[str, dict[str, Any]]
    refused: Mapping[int, str]
    warnings: list[dict[str, Any]]
    simulated: bool
    digests: Sequence[bytes]


class RepeatedIds(Exception):
    """The batch has requests with the custom_ids of these `digests` already."""

    def __init__(self, digests: set[bytes]) -> None:
        super().__init__(f"{len(digests)} custom_ids")
        self.digests = digests


def repeated(session: Session, batch_id: str, key: str | None, sha256: str) -> Append | None:
    """Return what was added to the batch with this idempotency key, or None.

    Raises:
        ConflictError: other requests were.
    """
    if key is None:
        return None
    append = session.scalar(select(Append).where(Append.batch_id == batch_id, Append.idempotency_key == key))
    if append is not None and append.sha256 != sha256:
        raise ConflictError(
            "These requests conflict with earlier ones: their Idempotency-Key was used with others of this batch. "
            "Use a new key for new ones.",
            code="idempotency_key_reused",
        )
    return append


def refuse_closed(batch: Batch) -> None:
    """Raise ConflictError, with the reason, if a batch takes no requests."""
    if batch.open:
        return
    reason = "was closed, or made of a file" if batch.status == "in_progress" else f"has status '{batch.status}'"
    message = f"Batch '{batch.id}' takes no more requests: it {reason}. Create another one with \"open\": true."
    raise ConflictError(message, code="batch_closed", param="batch_id")


def size(session: Session, batch_id: str) -> int:
    """Return the bytes that were added to a batch."""
    return int(session.scalar(select(func.sum(Append.bytes)).where(Append.batch_id == batch_id)) or 0)


def locked(session: Session, project_id: str, batch_id: str) -> Batch:
    """Return a batch that nobody else adds to, or closes, before the end of the transaction. Raises NotFoundError."""
    batch = batches.get(session, project_id, batch_id)
    session.refresh(batch, with_for_update={"key_share": True})
    return batch


def add(session: Session, batch: Batch, key: str | None, new: NewRequests) -> Append | None:
    """Add requests to an open batch, see `locked`; None if others were added since it had its `first_line`.

    Those that were added before with this idempotency key are returned and not added again.

    Raises:
        ConflictError: the batch is not open, or the key was used for other requests.
        RepeatedIds.
    """
    append = repeated(session, batch.id, key, new.sha256)
    if append is not None:
        return append
    refuse_closed(batch)
    if batch.total + 1 != new.first_line:
        return None
    _claim_ids(session, batch.id, new.digests)
    batch.simulated |= new.simulated
    batch.warnings = new.warnings
    session.flush()
    extension.extend(session, batch.id, new.segments, new.models, new.refused)
    append = Append(
        id=new_id("append_"),
        batch_id=batch.id,
        idempotency_key=key,
        sha256=new.sha256,
        bytes=new.size,
        requests=new.requests,
        first_line=new.first_line,
        created_at=now(),
    )
    session.add(append)
    session.flush()
    return append


def _claim_ids(session: Session, batch_id: str, digests: Sequence[bytes]) -> None:
    """Record the custom_ids of new requests. Raises RepeatedIds."""
    known: set[bytes] = set()
    for start in range(0, len(digests), _AT_ONCE):
        chosen = AppendedId.digest.in_(digests[start : start + _AT_ONCE])
        known.update(session.scalars(select(AppendedId.digest).where(AppendedId.batch_id == batch_id, chosen)))
    if known:
        raise RepeatedIds(known)
    session.execute(insert(AppendedId), [{"batch_id": batch_id, "digest": digest} for digest in digests])
