"""Events: changes of batches and jobs, which webhooks get, and what clients have done.

Each is written in the transaction of its change, so none is lost.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from store import listing, webhooks
from store.keys import Principal
from store.records import Batch, Event, Job, added

# The first four are OpenAI's webhook events; the others are Batchyard's. Those of deliberations are of a job's single
# items, those of budgets of a whole project. The death of an engine is of the batch whose requests were in it; without
# one it is of each project that has an admin key.
Type = Literal[
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
    "batch.on_track",
    "batch.at_risk",
    "batch.late",
    "batch.held",
    "batch.planned",
    "batch.stopped",
    "engine.died",
    "job.planned",
    "job.stopped",
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
    "budget.warning",
    "budget.exceeded",
]
TYPES: tuple[str, ...] = get_args(Type)

Action = Literal[
    "budget.changed",
    "budget.removed",
    "model.added",
    "model.changed",
    "model.removed",
    "models.reloaded",
    "batch.created",
    "batch.paused",
    "batch.resumed",
    "batch.changed",
    "batch.closed",
    "batch.cancelling",
    "batch.deleted",
    "job.created",
    "job.paused",
    "job.resumed",
    "job.cancelling",
    "job.deleted",
    "item.judged",
    "item.requeued",
    "item.resolved",
    "file.deleted",
    "project.deleted",
    "key.created",
    "key.revoked",
    "usage.recomputed",
    "schedule.created",
    "schedule.changed",
    "schedule.deleted",
    "webhook.created",
    "webhook.changed",
    "webhook.deleted",
]
"""What clients do, in the past tense where it is done at once."""


def record(session: Session, subject: Batch | Job, type_: str, **data: Any) -> Event:
    """Record an event of work with its data, and its deliveries."""
    event = Event(**_owner(subject), project_id=subject.project_id, type=type_, data={"id": subject.id, **data})
    return _deliver(session, event, subject.callback_url)


def record_death(session: Session, batch: Batch, **data: Any) -> Event:
    job = {} if batch.job_id is None else {"job_id": batch.job_id}
    columns = {"batch_id": batch.id, "job_id": batch.job_id, "project_id": batch.project_id, "type": "engine.died"}
    return _deliver(session, Event(**columns, data={"id": batch.id, **job, **data}))


def announce(session: Session, project_id: str, type_: str, **data: Any) -> Event:
    """Record an event of a project, whose id is in the event's data with `data`, and its deliveries."""
    return _deliver(session, Event(project_id=project_id, type=type_, data={"id": project_id, **data}))


def _deliver(session: Session, event: Event, callback_url: str | None = None) -> Event:
    added(session, event)
    webhooks.deliver_to_all(session, event, callback_url)
    return event


def act(session: Session, by: Principal | None, type_: Action, subject: Batch | Job | str, **data: Any) -> None:
    """Record a client's action on something, by id, without secrets; nothing if no client acted."""
    if by is None:
        return
    subject_id, of_work = (subject, {}) if isinstance(subject, str) else (subject.id, _owner(subject))
    whose = {"project_id": by.project_id, "key_id": by.key_id, "key_name": by.name}
    session.add(Event(type=type_, data={"id": subject_id, **data}, **of_work, **whose))


def actions(session: Session, project_id: str | None, *, after: str | None, limit: int) -> tuple[Sequence[Event], bool]:
    """Return clients' actions, newest first, and if more follow. None: of all projects. Raises RequestError."""
    scope: ColumnElement[bool] = Event.key_id.is_not(None)
    if project_id is not None:
        scope = and_(scope, Event.project_id == project_id)
    return listing.page(session, Event, scope, after=after, limit=limit, descending=True)


def recorded(session: Session, subject: Batch | Job, type_: str) -> bool:
    return session.scalar(select(Event.id).where(_of(subject), Event.type == type_).limit(1)) is not None


def page(session: Session, subject: Batch | Job, *, after: str | None, limit: int) -> tuple[Sequence[Event], bool]:
    """Return events of work, oldest first, and if more follow. Raises RequestError."""
    return listing.page(session, Event, _of(subject), after=after, limit=limit, descending=False)


def _owner(subject: Batch | Job) -> dict[str, str]:
    return {"batch_id": subject.id} if isinstance(subject, Batch) else {"job_id": subject.id}


def _of(subject: Batch | Job) -> ColumnElement[bool]:
    return Event.batch_id == subject.id if isinstance(subject, Batch) else Event.job_id == subject.id
