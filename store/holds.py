"""Holds: models that cannot run, which is the deployment's fault, so their batches wait and say why.

Either a model's engine cannot start, or its engines die and answer nothing, or the model is not served any more. What
has failed last is kept until an engine of the model answers.
"""

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, or_, select, update
from sqlalchemy.orm import Session

from batchyard.backoff import Backoff
from batchyard.wording import cut
from store import events, keys
from store.database import locked
from store.records import Batch, EngineFailure, Event, Hold, Segment, now

BACKOFF = Backoff(first=5.0, longest=300.0)
"""Between two attempts to start a model's engine."""
UNSERVED = (
    "The model is not served any more: it was removed from models.toml. Its requests run once it is there again. "
    "Shortly before the completion window ends they get the error model_not_found."
)
"""The reason of a model's hold for which nothing is tried."""
REFUSED = "Its endpoints refuse every request: "
"""The beginning of the reason of a hold that ends with an answer: their servers start, and answer nothing."""
FRUITLESS_DEATHS = 4
"""A model goes on hold after so many deaths of its engines without an answer between, over all runs. One request that
kills engines costs three: one among others, two alone."""
DEATH_EVENTS = 20
"""Events of deaths in one batch. Further deaths are only counted."""
MAX_REASONS = 10
MAX_REASON = 4000
"""Different reasons of deaths that a batch keeps, and the most characters of each."""
MAX_ENGINES = 32
"""Ids of engines that died, by which a death is known that several runs report."""
LAST_SECONDS = 60
LAST_SHARE = 10
"""A segment waits until LAST_SECONDS before its completion window ends, or 1/LAST_SHARE of a shorter window."""


def hold(session: Session, model: str, reason: str) -> Hold:
    """Hold a model after a failed start, or longer. Each batch that waits for it has a `batch.held`."""
    _fail(_failure(session, model), reason, 0, "starts_again")
    return _hold(session, model, reason)


def record_death(session: Session, batch_id: str | None, *, model: str, engine: str, reason: str, **facts: Any) -> bool:
    """Count an engine's death for a batch, with its event, and as the model's last failure.

    `facts`: its `replica`, the `requests` in it, and what is `next` for these. Without a batch a new one is an event of
    each project with an admin key. False if it was reported before.
    """
    reason = cut(reason, MAX_REASON)
    death = {"model": model, "reason": reason, **facts}
    if batch_id is not None:
        batch = session.get_one(Batch, batch_id, with_for_update={"key_share": True})
        deaths = batch.engine_deaths or {}
        before = deaths.get(model, {"deaths": 0, "reasons": {}})
        number, reasons = before["deaths"] + 1, before["reasons"]
        if reason in reasons or len(reasons) < MAX_REASONS:
            reasons = {**reasons, reason: reasons.get(reason, 0) + 1}
        last = {"at": now(), "reason": reason, **facts}
        batch.engine_deaths = {**deaths, model: {"deaths": number, "reasons": reasons, "last": last}}
        if sum(entry["deaths"] for entry in batch.engine_deaths.values()) <= DEATH_EVENTS:
            events.record_death(session, batch, **death, deaths=number)
    failure = _failure(session, model)
    if engine in failure.engines:
        return False
    failure.engines = [*failure.engines, engine][-MAX_ENGINES:]
    _fail(failure, reason, facts["requests"], facts["next"])
    failure.deaths += 1
    for project_id in keys.admin_projects(session) if batch_id is None else ():
        events.announce(session, project_id, "engine.died", **death, deaths=failure.deaths)
    return True


def _fail(failure: EngineFailure, reason: str, requests: int, next_: str) -> None:
    failure.reason, failure.at, failure.answered = cut(reason, MAX_REASON), now(), False
    failure.requests, failure.next = requests, next_


def hold_after_deaths(session: Session, model: str) -> Hold | None:
    """Hold a model whose engines die and answer nothing, unless it waits. None if not so."""
    failure = _failure(session, model)
    current = session.get(Hold, model)
    if failure.deaths < FRUITLESS_DEATHS or (current is not None and current.retry_at > time.time()):
        return None
    return _hold(
        session, model, f"its engines died {failure.deaths} times without an answer between, at last: {failure.reason}"
    )


def failures(session: Session) -> dict[str, EngineFailure]:
    """Return the last failure of each model of which no engine has answered since."""
    return {failure.model: failure for failure in session.scalars(select(EngineFailure).where(~EngineFailure.answered))}


def _failure(session: Session, model: str) -> EngineFailure:
    """Return a model's last failure, an empty one if there was none. Nobody else changes it meanwhile."""
    none = {"reason": "", "at": 0, "requests": 0, "next": "", "deaths": 0, "engines": [], "answered": True}
    return locked(session, EngineFailure, {"model": model}, **none)


def _hold(session: Session, model: str, reason: str) -> Hold:
    record = locked(session, Hold, {"model": model}, reason=reason, since=now(), attempts=0, retry_at=0.0)
    record.reason, record.attempts = reason, record.attempts + 1
    record.retry_at = time.time() + BACKOFF.seconds(record.attempts)
    _announce(session, record)
    return record


def hold_unserved(session: Session, model: str) -> None:
    """Hold a model that is not served any more. Emit `batch.held` for each batch that waits for it."""
    record = locked(session, Hold, {"model": model}, reason=UNSERVED, since=now(), attempts=0, retry_at=0.0)
    record.reason, record.attempts, record.retry_at = UNSERVED, 0, 0.0
    _announce(session, record)


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
    """End a model's hold: it is served again, or nobody waits for it."""
    session.execute(delete(Hold).where(Hold.model == model))


def engine_started(session: Session, model: str) -> None:
    """End a model's hold, unless its engines start and then die or answer nothing: that hold ends with an answer."""
    dying = select(EngineFailure.model).where(EngineFailure.model == model, EngineFailure.deaths >= FRUITLESS_DEATHS)
    fruitless = or_(dying.exists(), Hold.reason.startswith(REFUSED))
    session.execute(delete(Hold).where(Hold.model == model, or_(Hold.reason == UNSERVED, ~fruitless)))


def engine_answered(session: Session, model: str) -> None:
    """End a model's hold: an engine of it answers, so nobody waits for the next attempt."""
    session.execute(delete(Hold).where(Hold.model == model, Hold.reason != UNSERVED))
    failed = and_(EngineFailure.model == model, ~EngineFailure.answered)
    session.execute(update(EngineFailure).where(failed).values(answered=True, deaths=0))


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
    """Return the condition for segments that need not wait for a hold on their model."""
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
