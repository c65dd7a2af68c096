"""Holds: models that cannot run, which is the deployment's fault, so their batches wait and say why.

Either a model's engine cannot start, or the model is not served any more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import ColumnElement, and_, case, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from batchyard.backoff import Backoff
from store import events
from store.records import Batch, Event, Hold, Segment, now

BACKOFF = Backoff(first=5.0, longest=300.0)
"""Between two attempts to start a model's engine."""
UNSERVED = (
    "The model is not served any more: it was removed from models.toml. Its requests run once it is there again. "
    "Shortly before the completion window ends they get the error model_not_found."
)
"""The reason of a model's hold for which nothing is tried."""
LAST_SECONDS = 60
LAST_SHARE = 10
"""A segment waits until LAST_SECONDS before its completion window ends, or 1/LAST_SHARE of a shorter window."""


def hold(session: Session, model: str, reason: str) -> Hold:
    """Hold a model after a failed start, or extend its hold. Emit `batch.held` for each batch that waits for it."""
    record = _locked(session, model, reason)
    record.reason, record.attempts = reason, record.attempts + 1
    record.retry_at = time.time() + BACKOFF.seconds(record.attempts)
    _announce(session, record)
    return record


def hold_unserved(session: Session, model: str) -> None:
    """Hold a model that is not served any more. Emit `batch.held` for each batch that waits for it."""
    record = _locked(session, model, UNSERVED)
    record.reason, record.attempts, record.retry_at = UNSERVED, 0, 0.0
    _announce(session, record)


def _locked(session: Session, model: str, reason: str) -> Hold:
    """Return a model's hold, a new one if there is none. Nobody else changes it until the transaction ends."""
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    first = {"model": model, "reason": reason, "since": now(), "attempts": 0, "retry_at": 0.0}
    session.execute(insert(Hold).on_conflict_do_nothing(), first)
    return session.get_one(Hold, model, with_for_update=True)


def _announce(session: Session, hold: Hold) -> None:
    session.flush()
    announced = select(Event.id).where(
        Event.batch_id == Batch.id, Event.type == "batch.held", Event.created_at >= hold.since
    )
    waiting = select(Segment.batch_id).where(Segment.batch_id == Batch.id, Hold.model == hold.model, _waits())
    announceable = and_(Batch.job_id.is_(None), waiting.correlate(Batch).exists(), ~announced.exists())
    for batch in session.scalars(select(Batch).where(announceable)):
        events.record(session, batch, "batch.held", model=hold.model, reason=hold.reason)


def release(session: Session, model: str) -> None:
    """End a model's hold: its engine has started, or it is served again."""
    session.execute(delete(Hold).where(Hold.model == model))


def end_failed_start(session: Session, model: str) -> None:
    """End a model's hold after a failed start: an engine of it answers, so nobody need wait for the next attempt."""
    session.execute(delete(Hold).where(Hold.model == model, Hold.reason != UNSERVED))


def unserved(session: Session) -> set[str]:
    """Return the models on hold because they are not served any more."""
    return set(session.scalars(select(Hold.model).where(Hold.reason == UNSERVED)))


def all_of(session: Session) -> dict[str, Hold]:
    """Return every hold that some batch waits for, by model."""
    waiting = select(Segment.id).join(Batch, Batch.id == Segment.batch_id).where(_waits())
    return {hold.model: hold for hold in session.scalars(select(Hold).where(waiting.exists()))}


def of_batches(session: Session, batch_ids: Sequence[str]) -> dict[str, Hold]:
    """Return the hold that each of these batches waits for, by batch id. Most have none."""
    rows = session.execute(
        select(Segment.batch_id, Hold)
        .join(Batch, Batch.id == Segment.batch_id)
        .join(Hold, _waits())
        .where(Segment.batch_id.in_(batch_ids))
        .distinct()
    )
    return dict(rows.all())


def may_start() -> ColumnElement[bool]:
    """Return the condition for segments whose model is not on hold now, or whose batch has no time to wait."""
    waits = or_(Hold.retry_at > time.time(), Hold.reason == UNSERVED)
    held = select(Hold.model).where(Hold.model == Segment.model, waits)
    return or_(~held.exists(), is_over())


def is_over() -> ColumnElement[bool]:
    """Return the condition for batches that can wait for a held model no longer."""
    window = Batch.expires_at - Batch.created_at
    last_seconds = case((window < LAST_SECONDS * LAST_SHARE, window / LAST_SHARE), else_=LAST_SECONDS)
    return Batch.expires_at - last_seconds <= now()


def _waits() -> ColumnElement[bool]:
    """Return the condition for segments, of the batch in the same query, that a hold keeps waiting."""
    return and_(Segment.model == Hold.model, Segment.state != "done", Batch.status == "in_progress")
