"""Events: changes of batches. Each is written in the transaction of its change, so none is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from sqlalchemy.orm import Session

from store import listing, webhooks
from store.records import Batch, Event, new_id, now

# The first four are OpenAI's webhook events; the others are Batchyard's.
Type = Literal[
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
    "batch.on_track",
    "batch.at_risk",
    "batch.late",
    "batch.held",
]
TYPES: tuple[str, ...] = get_args(Type)


def record(session: Session, batch: Batch, type_: str, **data: Any) -> Event:
    """Record an event of a batch and its deliveries. `data` goes into the event's data, beside the batch's id."""
    event = Event(
        id=new_id("evt_"),
        project_id=batch.project_id,
        batch_id=batch.id,
        type=type_,
        data={"id": batch.id, **data},
        created_at=now(),
    )
    session.add(event)
    session.flush()
    webhooks.deliver_to_all(session, event)
    return event


def page(session: Session, batch: Batch, *, after: str | None, limit: int) -> tuple[Sequence[Event], bool]:
    """Return events of a batch, oldest first, and True if there are more.

    Raises:
        RequestError: `after` is not one of them.
    """
    return listing.page(session, Event, Event.batch_id == batch.id, after=after, limit=limit, descending=False)
