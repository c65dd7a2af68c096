"""Events: changes of batches and jobs. Each is written in the transaction of its change, so none is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from store import listing, webhooks
from store.jobs.records import Job
from store.records import Batch, Event, new_id, now

# The first four are OpenAI's webhook events; the others are Batchyard's. The last two are of a job's single items.
Type = Literal[
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
    "batch.on_track",
    "batch.at_risk",
    "batch.late",
    "batch.held",
    "job.completed",
    "job.failed",
    "job.expired",
    "job.cancelled",
    "job.on_track",
    "job.at_risk",
    "job.late",
    "job.stuck",
    "job.gate_pending",
    "deliberation.completed",
    "deliberation.failed",
]
TYPES: tuple[str, ...] = get_args(Type)


def record(session: Session, subject: Batch | Job, type_: str, **data: Any) -> Event:
    """Record an event of a batch or a job and its deliveries. `data` goes into the event's data, beside the id."""
    event = Event(
        id=new_id("evt_"),
        project_id=subject.project_id,
        batch_id=subject.id if isinstance(subject, Batch) else None,
        job_id=subject.id if isinstance(subject, Job) else None,
        type=type_,
        data={"id": subject.id, **data},
        created_at=now(),
    )
    session.add(event)
    session.flush()
    webhooks.deliver_to_all(session, event)
    return event


def recorded(session: Session, subject: Batch | Job, type_: str) -> bool:
    """True if the batch or the job has an event of that type."""
    return session.scalar(select(Event.id).where(_of(subject), Event.type == type_).limit(1)) is not None


def page(session: Session, subject: Batch | Job, *, after: str | None, limit: int) -> tuple[Sequence[Event], bool]:
    """Return events of a batch or a job, oldest first, and True if there are more.

    Raises:
        RequestError: `after` is not one of them.
    """
    return listing.page(session, Event, _of(subject), after=after, limit=limit, descending=False)


def _of(subject: Batch | Job) -> ColumnElement[bool]:
    return Event.batch_id == subject.id if isinstance(subject, Batch) else Event.job_id == subject.id
