"""Appends: open batches get more segments while others of them run, and the requests that clients add to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from batchyard.errors import ConflictError
from store import batches, segments
from store.database import changed
from store.records import Append, AppendedId, Batch, Segment, added

_AT_ONCE = 500


def extend(
    session: Session,
    batch_id: str,
    added: Sequence[Segment],
    configurations: Mapping[str, dict[str, Any]],
    refused: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """Add unsaved segments, each with its plan, to an open batch, numbered on from its last one.

    The batch keeps the `configurations` of models that it has. `refused` has the SHA-256 of the result chunk of each
    segment whose requests were all refused, by its place in `added`.

    Raises ConflictError: the batch is not open any more, since it was closed or cancelled, or its window has passed.
    """
    new, failed = sum(segment.requests for segment in added), sum(added[place].requests for place in refused)
    sums = {"total": Batch.total + new, "failed": Batch.failed + failed, "refused": Batch.refused + failed}
    # The first statement: its row lock keeps the batch open until these segments are part of it.
    if not changed(session, update(Batch).where(Batch.id == batch_id, Batch.open).values(sums)):
        raise ConflictError(f"Batch '{batch_id}' is not open any more.")
    last = session.scalar(select(func.max(Segment.number)).where(Segment.batch_id == batch_id))
    segments.add(session, batch_id, added, refused, first=0 if last is None else last + 1)
    of_batch = session.execute(select(Batch.models).where(Batch.id == batch_id)).scalar_one()
    names = {segment.model for segment in added} - of_batch.keys()
    if names:
        models = of_batch | {name: configurations[name] for name in names}
        values = {"models": models, "model": batches.only_model(models)}
        session.execute(update(Batch).where(Batch.id == batch_id).values(**values))


@dataclass(frozen=True)
class NewRequests:
    """Requests that a plan file has already, with their unsaved record.

    `digests` are of the custom_ids. `warnings` are of the whole batch with these.
    """

    append: Append
    segments: Sequence[Segment]
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
    """Return what was added to the batch with this key, or None. Raises ConflictError for other requests."""
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
    return int(session.scalar(select(func.sum(Append.bytes)).where(Append.batch_id == batch_id)) or 0)


def locked(session: Session, project_id: str, batch_id: str) -> Batch:
    """Return a batch that nobody else adds to, or closes, before the end of the transaction. Raises NotFoundError."""
    batch = batches.get(session, project_id, batch_id)
    session.refresh(batch, with_for_update={"key_share": True})
    return batch


def add(session: Session, batch: Batch, new: NewRequests) -> Append | None:
    """Add requests to an open batch, see `locked`; None if others were added since their `first_line` was known.

    Those that were added before with their idempotency key are not added again. Raises RepeatedIds; ConflictError if
    the batch is closed, or the key was used for other requests.
    """
    append = repeated(session, batch.id, new.append.idempotency_key, new.append.sha256)
    if append is not None:
        return append
    refuse_closed(batch)
    if batch.total + 1 != new.append.first_line:
        return None
    known: set[bytes] = set()
    for start in range(0, len(new.digests), _AT_ONCE):
        chosen = AppendedId.digest.in_(new.digests[start : start + _AT_ONCE])
        known.update(session.scalars(select(AppendedId.digest).where(AppendedId.batch_id == batch.id, chosen)))
    if known:
        raise RepeatedIds(known)
    session.execute(insert(AppendedId), [{"batch_id": batch.id, "digest": digest} for digest in new.digests])
    batch.simulated |= new.simulated
    batch.warnings = new.warnings
    session.flush()
    extend(session, batch.id, new.segments, new.models, new.refused)
    return added(session, new.append)
