"""Webhooks: the receivers of a project's events, and the deliveries to them.

Deliveries are written in the transaction of their event, so no crash loses one. A compare-and-set claims and begins a
delivery. An attempt whose sender has died is repeated. So an event arrives at least once, always with the same id.
"""

import base64
import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, delete, func, select, update
from sqlalchemy.orm import Session

from batchyard.errors import ConflictError, NotFoundError, RequestError
from store import listing, projects
from store.database import changed
from store.records import Batch, Delivery, Event, Job, Webhook, added, now

MAX_WEBHOOKS = 20
# Longer than any attempt: a delivery that is still `sending` after this has lost its sender.
CLAIM_SECONDS = 30.0
OLD_SECRET_SECONDS = 24 * 3600
CALLBACKS = "callback_url"
"""Name and second id of a project's webhook without a URL: it sends to the `callback_url` of each batch and job."""
ENDS = [f"{work}.{end}" for work in ("batch", "job") for end in ("completed", "failed", "expired", "cancelled")]


class DeliveryAttempt(NamedTuple):
    """One attempt to deliver an event, the last one of the delivery's `attempts` so far."""

    delivery: Delivery
    webhook: Webhook
    event: Event
    url: str


def new_secret() -> str:
    """Return a signing secret of 32 random bytes, in the form of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def secrets_of(webhook: Webhook) -> list[str]:
    """Return the secrets that sign requests to a webhook now, newest first."""
    if webhook.old_secret is None or (webhook.old_secret_until or 0) <= now():
        return [webhook.secret]
    return [webhook.secret, webhook.old_secret]


def create(session: Session, project_id: str, *, name: str, url: str, event_types: list[str]) -> Webhook:
    """Create a webhook, enabled, for `event_types`. Raises RequestError if there are MAX_WEBHOOKS."""
    projects.get(session, project_id, lock=True)  # two concurrent counts would exceed the limit
    others = (Webhook.project_id == project_id, Webhook.url != "")
    if session.scalars(select(func.count()).where(*others)).one() >= MAX_WEBHOOKS:
        raise RequestError(
            f"A project has at most {MAX_WEBHOOKS} webhook endpoints; delete one, or let one take more event types.",
            code="too_many_webhook_endpoints",
        )
    values = {"name": name, "url": url, "event_types": event_types, "secret": new_secret()}
    return added(session, Webhook(project_id=project_id, **values))


def callbacks(session: Session, project_id: str) -> Webhook:
    """Return the project's webhook for callbacks, and create it on first use. Its secret signs them all."""
    projects.get(session, project_id, lock=True)  # two concurrent first uses would create two
    found = session.scalar(select(Webhook).where(Webhook.project_id == project_id, Webhook.url == ""))
    values = {"name": CALLBACKS, "url": "", "event_types": ENDS, "secret": new_secret()}
    return found or added(session, Webhook(project_id=project_id, **values))


def page(session: Session, project_id: str, *, after: str | None, limit: int) -> tuple[Sequence[Webhook], bool]:
    """Return the project's webhooks, newest first, and if more follow. Raises RequestError."""
    in_project = Webhook.project_id == project_id
    return listing.page(session, Webhook, in_project, after=after, limit=limit, descending=True)


def get(session: Session, project_id: str, webhook_id: str, *, lock: bool = False) -> Webhook:
    """Return a webhook, with `lock` until the transaction ends. Raises NotFoundError."""
    named = Webhook.url == "" if webhook_id == CALLBACKS else Webhook.id == webhook_id
    statement = select(Webhook).where(named, Webhook.project_id == project_id)
    webhook = session.scalar(statement.with_for_update() if lock else statement)
    if webhook is None:
        raise NotFoundError(f"No webhook endpoint found with id '{webhook_id}'.", param="webhook_endpoint_id")
    return webhook


def change(session: Session, project_id: str, webhook_id: str, values: dict[str, Any]) -> Webhook:
    """Set some fields of a webhook. A real change sets `updated_at`. Raises NotFoundError, RequestError."""
    webhook = get(session, project_id, webhook_id, lock=True)
    if "url" in values and not webhook.url:
        message = "This webhook endpoint sends to the callback_url of each batch and job; create another for a URL."
        raise RequestError(message, code="invalid_value", param="url")
    if any(getattr(webhook, name) != value for name, value in values.items()):
        webhook.updated_at = now()
    for name, value in values.items():
        setattr(webhook, name, value)
    return webhook


def rotate_secret(session: Session, project_id: str, webhook_id: str, *, keep_old: bool) -> Webhook:
    """Replace the secret. With `keep_old`, the last one signs too, for 24 hours. Raises NotFoundError."""
    if webhook_id == CALLBACKS:
        callbacks(session, project_id)
    webhook = get(session, project_id, webhook_id, lock=True)
    rotated_at = now()
    webhook.old_secret = webhook.secret if keep_old else None
    webhook.old_secret_until = rotated_at + OLD_SECRET_SECONDS if keep_old else None
    webhook.secret, webhook.updated_at = new_secret(), rotated_at
    return webhook


def remove(session: Session, project_id: str, webhook_id: str) -> None:
    """Delete a webhook and its deliveries in a serial transaction, as `claim`. Raises NotFoundError."""
    # Lock first: a concurrent event has added its delivery by then, or does not see this webhook.
    webhook = get(session, project_id, webhook_id, lock=True)
    session.execute(delete(Delivery).where(Delivery.webhook_id == webhook.id))
    session.delete(webhook)


def disable(session: Session, webhook_id: str) -> None:
    """Stop deliveries to a webhook until it is enabled again; one receiver of callbacks does not speak for all."""
    enabled = update(Webhook).where(Webhook.id == webhook_id, Webhook.enabled, Webhook.url != "")
    session.execute(enabled.values(enabled=False, updated_at=now()))


def deliver_to_all(session: Session, event: Event, callback_url: str | None = None) -> None:
    """Add a delivery of a new event for each webhook that receives its type, in the event's transaction.

    `callback_url`: that of the batch or job.
    """
    statement = select(Webhook).where(Webhook.project_id == event.project_id, Webhook.enabled)
    next_attempt_at = time.time()
    session.add_all(
        Delivery(
            project_id=event.project_id,
            webhook_id=webhook.id,
            event_id=event.id,
            next_attempt_at=next_attempt_at,
            created_at=event.created_at,
        )
        for webhook in session.scalars(statement.with_for_update(read=True, key_share=True))
        if event.type in webhook.event_types and (webhook.url or callback_url)
    )


def deliveries(
    session: Session, webhook: Webhook, *, after: str | None, limit: int
) -> tuple[list[tuple[Delivery, Event]], bool]:
    """Return deliveries with their events, newest first, and if more follow. Raises RequestError."""
    of_webhook = Delivery.webhook_id == webhook.id
    records, more = listing.page(session, Delivery, of_webhook, after=after, limit=limit, descending=True)
    return _with_events(session, records), more


def _with_events(session: Session, records: Sequence[Delivery]) -> list[tuple[Delivery, Event]]:
    statement = select(Event).where(Event.id.in_({delivery.event_id for delivery in records}))
    events = {event.id: event for event in session.scalars(statement)}
    return [(delivery, events[delivery.event_id]) for delivery in records]


def redeliver(session: Session, webhook: Webhook, delivery_id: str) -> tuple[Delivery, Event]:
    """Make a delivery due now, and return it with its event. Raises NotFoundError; ConflictError if disabled."""
    statement = select(Delivery).where(Delivery.id == delivery_id, Delivery.webhook_id == webhook.id)
    delivery = session.scalar(statement)
    if delivery is None:
        raise NotFoundError(f"No delivery found with id '{delivery_id}'.", param="delivery_id")
    if not webhook.enabled:
        raise ConflictError(f"Webhook endpoint '{webhook.id}' is disabled; enable it, then send its deliveries again.")
    values = {"state": "pending", "next_attempt_at": time.time(), "delivered_at": None}
    changed(session, update(Delivery).where(Delivery.id == delivery_id, Delivery.state != "sending").values(values))
    session.refresh(delivery)
    return _with_events(session, [delivery])[0]


def any_due(session: Session, at: float) -> bool:
    """True if a delivery to an enabled webhook is due at `at` (Unix seconds)."""
    statement = (
        select(Delivery.id).join(Webhook, Webhook.id == Delivery.webhook_id).where(_due(at), Webhook.enabled).limit(1)
    )
    return session.scalar(statement) is not None


def claim(session: Session, *, at_once: int, per_project: int) -> list[tuple[str, int]]:
    """Claim due deliveries for CLAIM_SECONDS. Return them as (id, attempts so far).

    A project's deliveries with the fewest attempts come first. So a receiver that hangs delays no other project, and
    hardly the new deliveries of its own. Call it in a serial transaction, so that the limits hold over all callers.
    """
    claimed_at = time.time()
    active = select(Delivery.project_id, func.count().label("number")).where(
        Delivery.state == "sending", Delivery.next_attempt_at > claimed_at
    )
    active_counts = {row.project_id: row.number for row in session.execute(active.group_by(Delivery.project_id))}
    order = (Delivery.attempts, Delivery.next_attempt_at, Delivery.id)
    rank = func.row_number().over(partition_by=Delivery.project_id, order_by=order).label("rank")
    ranked = (
        select(Delivery.id, Delivery.project_id, Delivery.attempts, rank)
        .join(Webhook, Webhook.id == Delivery.webhook_id)
        .where(_due(claimed_at), Webhook.enabled)
        .subquery()
    )
    statement = select(ranked).where(ranked.c.rank <= per_project).order_by(ranked.c.rank, ranked.c.id)
    rows = [row for row in session.execute(statement) if row.rank + active_counts.get(row.project_id, 0) <= per_project]
    values = {"state": "sending", "next_attempt_at": claimed_at + CLAIM_SECONDS}
    return [
        (row.id, row.attempts)
        for row in rows[: max(0, at_once - sum(active_counts.values()))]
        if changed(session, update(Delivery).where(Delivery.id == row.id, _due(claimed_at)).values(values))
    ]


def _due(at: float) -> ColumnElement[bool]:
    return and_(Delivery.state.in_(("pending", "sending")), Delivery.next_attempt_at <= at)


def begin(session: Session, delivery_id: str, attempts: int) -> DeliveryAttempt | None:
    """Begin the next attempt after `attempts`. None if another sender has begun it or the webhook is deleted."""
    statement = (
        update(Delivery)
        .where(Delivery.id == delivery_id, Delivery.state == "sending", Delivery.attempts == attempts)
        .values(attempts=attempts + 1, next_attempt_at=time.time() + CLAIM_SECONDS)
    )
    if not changed(session, statement):
        return None
    delivery = session.get_one(Delivery, delivery_id)
    webhook = session.get_one(Webhook, delivery.webhook_id)
    event = session.get_one(Event, delivery.event_id)
    work = session.get(Batch, event.batch_id) if event.batch_id else session.get(Job, event.job_id)
    return DeliveryAttempt(delivery, webhook, event, webhook.url or (work and work.callback_url) or "")


def record_outcome(
    session: Session,
    attempt: DeliveryAttempt,
    *,
    status_code: int | None,
    error: str | None = None,
    wait: float | None = None,
) -> None:
    """Record the outcome of an attempt, unless a later attempt has begun.

    An `error` says why the event was not delivered. `wait` is seconds until the next attempt; None for no other.
    """
    ended_at = time.time()
    values = {
        "state": "delivered" if error is None else "failed" if wait is None else "pending",
        "status_code": status_code,
        "error": error,
        "delivered_at": int(ended_at) if error is None else None,
        "next_attempt_at": ended_at + (wait or 0.0),
    }
    begun = attempt.delivery
    current = and_(Delivery.id == begun.id, Delivery.state == "sending", Delivery.attempts == begun.attempts)
    changed(session, update(Delivery).where(current).values(values))


def undelivered(session: Session) -> dict[str, int]:
    counts = {"pending": 0, "sending": 0}
    rows = session.execute(
        select(Delivery.state, func.count()).where(Delivery.state.in_(counts)).group_by(Delivery.state)
    )
    return counts | dict(rows.all())
