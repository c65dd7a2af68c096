"""Extension: open batches get more segments, while others of them run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from batchyard.errors import ConflictError
from store import batches, segments
from store.database import changed
from store.records import Batch, Segment
from store.speeds import RequestClass


class AddedSegment(NamedTuple):
    """A segment of a plan file that is not its batch's. `bytes` counts its request bodies."""

    model: str
    requests: int
    bytes: int
    request_class: RequestClass
    plan_sha256: str
    row_group: int


def extend(
    session: Session,
    batch_id: str,
    added: Sequence[AddedSegment],
    configurations: Mapping[str, dict[str, Any]],
    refused: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """Add segments to an open batch, numbered on from its last one.

    Args:
        configurations: of the models of these segments; the batch keeps those that it has.
        refused: SHA-256 of the result chunk of each segment whose requests were all refused, by its place in `added`.

    Raises:
        ConflictError: the batch is not open any more, since it was closed or cancelled, or its window has passed.
    """
    total = Batch.total + sum(segment.requests for segment in added)
    failed = Batch.failed + sum(added[place].requests for place in refused)
    # The first statement: its row lock keeps the batch open until these segments are part of it.
    if not changed(session, update(Batch).where(Batch.id == batch_id, Batch.open).values(total=total, failed=failed)):
        raise ConflictError(f"Batch '{batch_id}' is not open any more.")
    last = session.scalar(select(func.max(Segment.number)).where(Segment.batch_id == batch_id))
    first = 0 if last is None else last + 1
    records = [
        Segment(batch_id=batch_id, number=number, **segment._asdict()) for number, segment in enumerate(added, first)
    ]
    segments.add(session, records, {first + place: sha256 for place, sha256 in refused.items()})
    of_batch = session.execute(select(Batch.models).where(Batch.id == batch_id)).scalar_one()
    names = {segment.model for segment in added} - of_batch.keys()
    if names:
        models = of_batch | {name: configurations[name] for name in names}
        values = {"models": models, "model": batches.only_model(models)}
        session.execute(update(Batch).where(Batch.id == batch_id).values(**values))
