"""Webhooks: where a project's events are sent to, and each event's way there.

An event's deliveries are written in the transaction of the event itself, so a process that dies anywhere loses none.
A delivery is taken and begun by compare-and-set, so no attempt is made twice at once; one whose sender has died is
made again. So an event arrives at least once, under the same id each time.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, select, update
from sqlalchemy.orm import Session

from batchyard.errors import ConflictError, NotFoundError, RequestError
from store import listing
from store.database import changed
from store.records import Delivery, Event, Project, Webhook, new_id, now

MAX_WEBHOOKS = 20
# Longer than an attempt may take: what is still being sent after this was lost with its sender.
CLAIM_SECONDS = 30.0
OLD_SECRET_SECONDS = 24 * 3600


@dataclass(frozen=True)
class Attempt:
    """One try to deliver an event; `number` counts from 1, and tells this try from every other."""

    delivery_id: str
    number: int
    webhook_id: str
    url: str
    secrets: list[str] = field(repr=False)
    event: Event


def new_secret() -> str:
    """A signing secret, as Standard Webhooks writes one: 32 random bytes."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def secrets_of(webhook: Webhook) -> list[str]:
    """The secrets that sign what is sent there now, the newest first."""
    if webhook.old_secret is None or (webhook.old_secret_until or 0) <= now():
        return [webhook.secret]
    return [webhook.secret, webhook.old_secret]


def create(session: Session, project_id: str, *, name: str, url: str, event_types: list[str]) -> Webhook:
    """A new webhook, enabled; `event_types` are what it is sent.

    Raises:
        RequestError: the project has as many as it may.
    """
    # Held until the end of the transaction, so that two that count at once do not both add the last one.
    session.get_one(Project, project_id, with_for_update={"key_share": True})
    if session.scalars(select(func.count()).where(Webhook.project_id == project_id)).one() >= MAX_WEBHOOKS:
        raise RequestError(
            f"A project has at most {MAX_WEBHOOKS} webhook endpoints; delete one, or let one take more event types.",
            code="too_many_webhook_endpoints",
        )
    moment = now()
    webhook = Webhook(
        id=new_id("wh_"),
        project_id=project_id,
        name=name,
        url=url,
        event_types=event_types,
        secret=new_secret(),
        created_at=moment,
        updated_at=moment,
    )
    session.add(webhook)
    session.flush()
    return webhook


def page(session: Session, project_id: str, *, after: str | None, limit: int) -> tuple[Sequence[Webhook], bool]:
    """The project's webhooks, newest first; whether there are more.

    Raises:
        RequestError: `after` is none of them.
    """
    scope = Webhook.project_id == project_id
    return listing.page(session, Webhook, scope, after=after, limit=limit, descending=True)


def get(session: Session, project_id: str, webhook_id: str, *, to_change: bool = False) -> Webhook:
    """Raises NotFoundError when the project has no such webhook. With `to_change`, nobody else changes it meanwhile."""
    wanted = select(Webhook).where(Webhook.id == webhook_id, Webhook.project_id == project_id)
    webhook = session.scalar(wanted.with_for_update() if to_change else wanted)
    if webhook is None:
        raise NotFoundError(f"No webhook endpoint found with id '{webhook_id}'.", param="webhook_endpoint_id")
    return webhook


def change(session: Session, project_id: str, webhook_id: str, values: dict[str, Any]) -> Webhook:
    """Set some of its fields; `updated_at` says when one of them last became another. Raises NotFoundError."""
    webhook = get(session, project_id, webhook_id, to_change=True)
    if any(getattr(webhook, name) != value for name, value in values.items()):
        webhook.updated_at = now()
    for name, value in values.items():
        setattr(webhook, name, value)
    return webhook


def rotate_secret(session: Session, project_id: str, webhook_id: str, *, keep_old: bool) -> Webhook:
    """Sign everything from now on with a new secret; with `keep_old`, for 24 hours with the last one, too.

    Raises:
        NotFoundError: the project has no such webhook.
    """
    webhook = get(session, project_id, webhook_id, to_change=True)
    moment = now()
    webhook.old_secret = webhook.secret if keep_old else None
    webhook.old_secret_until = moment + OLD_SECRET_SECONDS if keep_old else None
    webhook.secret, webhook.updated_at = new_secret(), moment
    return webhook


def remove(session: Session, project_id: str, webhook_id: str) -> None:
    """Delete a webhook and its deliveries; the events stay. Call it in a serial transaction, as `take`.

    Raises:
        NotFoundError: the project has no such webhook.
    """
    # Locked first: an event that is being recorded has added its delivery by then, or does not see this webhook.
    webhook = get(session, project_id, webhook_id, to_change=True)
    session.execute(delete(Delivery).where(Delivery.webhook_id == webhook.id))
    session.delete(webhook)


def disable(session: Session, webhook_id: str) -> None:
    """Send nothing more there until somebody enables it again."""
    off = {"enabled": False, "updated_at": now()}
    changed(session, update(Webhook).where(Webhook.id == webhook_id, Webhook.enabled).values(off))


def deliver_to_all(session: Session, event: Event) -> None:
    """Add a delivery of a new event for each webhook that takes it, in the event's own transaction."""
    listening = select(Webhook).where(Webhook.project_id == event.project_id, Webhook.enabled)
    moment = time.time()
    session.add_all(
        Delivery(
            id=new_id("dlv_"),
            project_id=event.project_id,
            webhook_id=webhook.id,
            event_id=event.id,
            next_attempt_at=moment,
            created_at=event.created_at,
        )
        for webhook in session.scalars(listening.with_for_update(read=True, key_share=True))
        if event.type in webhook.event_types
    )


def deliveries(
    session: Session, webhook: Webhook, *, after: str | None, limit: int
) -> tuple[list[tuple[Delivery, str]], bool]:
    """A webhook's deliveries, each with its event's type, newest first; whether there are more.

    Raises:
        RequestError: `after` is none of them.
    """
    scope = Delivery.webhook_id == webhook.id
    found, more = listing.page(session, Delivery, scope, after=after, limit=limit, descending=True)
    return _with_types(session, found), more


def _with_types(session: Session, found: Sequence[Delivery]) -> list[tuple[Delivery, str]]:
    named = select(Event.id, Event.type).where(Event.id.in_({delivery.event_id for delivery in found}))
    types = {row.id: row.type for row in session.execute(named)}
    return [(delivery, types[delivery.event_id]) for delivery in found]


def redeliver(session: Session, webhook: Webhook, delivery_id: str) -> tuple[Delivery, str]:
    """Send a delivery again at once, whatever became of it; one that is being sent stays as it is.

    Raises:
        NotFoundError: the webhook has no such delivery.
        ConflictError: the webhook is disabled.
    """
    wanted = select(Delivery).where(Delivery.id == delivery_id, Delivery.webhook_id == webhook.id)
    delivery = session.scalar(wanted)
    if delivery is None:
        raise NotFoundError(f"No delivery found with id '{delivery_id}'.", param="delivery_id")
    if not webhook.enabled:
        raise ConflictError(f"Webhook endpoint '{webhook.id}' is disabled; enable it, then send its deliveries again.")
    again = {"state": "pending", "next_attempt_at": time.time(), "delivered_at": None}
    changed(session, update(Delivery).where(Delivery.id == delivery_id, Delivery.state != "sending").values(again))
    session.refresh(delivery)
    return _with_types(session, [delivery])[0]


def any_due(session: Session) -> bool:
    due = select(Delivery.id).join(Webhook, Webhook.id == Delivery.webhook_id).where(_due(time.time()), Webhook.enabled)
    return session.scalar(due.limit(1)) is not None


def claim(session: Session, *, at_once: int, per_project: int) -> list[tuple[str, int]]:
    """Deliveries to begin now, as (id, attempts so far), and nobody else's for CLAIM_SECONDS.

    Of each project what was tried least often goes first, so that a receiver that hangs delays no other project's, and
    of its own project the new ones least. Call it in a serial transaction: the limits hold over all callers then.

    Args:
        at_once: most deliveries on their way at once.
        per_project: most of one project.
    """
    moment = time.time()
    claimed = select(Delivery.project_id, func.count().label("number")).where(
        Delivery.state == "sending", Delivery.next_attempt_at > moment
    )
    busy = {row.project_id: row.number for row in session.execute(claimed.group_by(Delivery.project_id))}
    order = (Delivery.attempts, Delivery.next_attempt_at, Delivery.id)
    place = func.row_number().over(partition_by=Delivery.project_id, order_by=order).label("place")
    ranked = (
        select(Delivery.id, Delivery.project_id, Delivery.attempts, place)
        .join(Webhook, Webhook.id == Delivery.webhook_id)
        .where(_due(moment), Webhook.enabled)
        .subquery()
    )
    first = select(ranked).where(ranked.c.place <= per_project).order_by(ranked.c.place, ranked.c.id)
    chosen = [row for row in session.execute(first) if row.place + busy.get(row.project_id, 0) <= per_project]
    claim = {"state": "sending", "next_attempt_at": moment + CLAIM_SECONDS}
    return [
        (row.id, row.attempts)
        for row in chosen[: max(0, at_once - sum(busy.values()))]
        if changed(session, update(Delivery).where(Delivery.id == row.id, _due(moment)).values(claim))
    ]


def _due(moment: float) -> ColumnElement[bool]:
    return and_(Delivery.state.in_(("pending", "sending")), Delivery.next_attempt_at <= moment)


def begin(session: Session, delivery_id: str, attempts: int) -> Attempt | None:
    """Begin the attempt that follows `attempts` earlier ones; None if somebody has, or the webhook is gone."""
    begun = (
        update(Delivery)
        .where(Delivery.id == delivery_id, Delivery.state == "sending", Delivery.attempts == attempts)
        .values(attempts=attempts + 1, next_attempt_at=time.time() + CLAIM_SECONDS)
    )
    if not changed(session, begun):
        return None
    delivery = session.get_one(Delivery, delivery_id)
    webhook = session.get_one(Webhook, delivery.webhook_id)
    event = session.get_one(Event, delivery.event_id)
    return Attempt(delivery_id, attempts + 1, webhook.id, webhook.url, secrets_of(webhook), event)


def record_outcome(
    session: Session,
    attempt: Attempt,
    *,
    status_code: int | None,
    error: str | None = None,
    wait: float | None = None,
) -> None:
    """Record what became of an attempt; nothing, if the delivery has gone on without it.

    Args:
        status_code: what the receiver answered, None if it did not.
        error: why the event was not delivered; None if it was.
        wait: seconds until the next attempt; None if there is none.
    """
    moment = time.time()
    values = {
        "state": "delivered" if error is None else "failed" if wait is None else "pending",
        "status_code": status_code,
        "error": error,
        "delivered_at": int(moment) if error is None else None,
        "next_attempt_at": moment + (wait or 0.0),
    }
    mine = and_(Delivery.id == attempt.delivery_id, Delivery.state == "sending", Delivery.attempts == attempt.number)
    changed(session, update(Delivery).where(mine).values(values))


def undelivered(session: Session) -> dict[str, int]:
    """How many deliveries are on their way, by state."""
    rows = session.execute(
        select(Delivery.state, func.count()).where(Delivery.state.in_(("pending", "sending"))).group_by(Delivery.state)
    )
    found = {"pending": 0, "sending": 0}
    for state, count in rows:
        found[state] = count
    return found
