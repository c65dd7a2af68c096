"""Sending events to webhooks: which delivery is made next, what is sent, and when it is tried again. And samples."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any

import orjson
from standardwebhooks import Webhook as Signer

from batchyard import __version__, retry_after
from batchyard.backoff import Backoff
from batchyard.errors import RateLimitError, RequestError
from batchyard.queues import WEBHOOK_THREADS
from store import webhooks
from store.records import Event, Webhook, new_id, now
from tasks import messages
from tasks.context import AppContext
from tasks.webhooks import outbound

log = logging.getLogger(__name__)

# A worker has threads to spare beside these, so what is due is looked at however many receivers hang.
AT_ONCE = WEBHOOK_THREADS - 4
AT_ONCE_PER_PROJECT = 4
# Waits of 5, 7.5, 11 … seconds, and then of an hour: the last attempt is about a day after the first. A wait is about
# half of all that were before it, so a receiver that was down hears of everything within about half as long again.
ATTEMPTS = 38
BACKOFF = Backoff(first=5.0, growth=1.5, longest=3600.0, jitter=(1.0, 1.1))
GONE = 410
# A sample is sent by the thread that answers its request, and its receiver may hang: most threads are for the others.
SAMPLES_AT_ONCE = 4
SAMPLE_ID = "batch_sample"
_samples = threading.BoundedSemaphore(SAMPLES_AT_ONCE)


def enqueue_due(context: AppContext) -> None:
    """Take the deliveries that are due, as many as may be made at once, and ring for them."""
    with context.database.read() as session:
        if not webhooks.any_due(session):
            return
    with context.database.write(serial=True) as session:
        taken = webhooks.claim(session, at_once=AT_ONCE, per_project=AT_ONCE_PER_PROJECT)
    for delivery_id, attempts in taken:
        messages.deliver(delivery_id, attempts)


def deliver(context: AppContext, delivery_id: str, attempts: int) -> None:
    """Make one attempt, record what became of it, and ring for what may be made in its place."""
    with context.database.write() as session:
        attempt = webhooks.begin(session, delivery_id, attempts)
    if attempt is None:
        return
    status, retry_after, error = _send(context, attempt.url, attempt.secrets, attempt.event)
    gone = status == GONE
    final = error is None or gone or attempt.number >= ATTEMPTS
    wait = None if final else pause(attempt.number, retry_after)
    with context.database.write() as session:
        if gone:
            webhooks.disable(session, attempt.webhook_id)
        webhooks.record_outcome(session, attempt, status_code=status, error=error, wait=wait)
    ids = {"delivery_id": delivery_id, "webhook_id": attempt.webhook_id, "event_id": attempt.event.id}
    if error is None:
        log.info("event delivered", extra={**ids, "attempt": attempt.number})
    else:
        log.warning("event not delivered: %s", error, extra={**ids, "attempt": attempt.number, "again_in": wait})
    enqueue_due(context)


def send_sample(context: AppContext, webhook: Webhook, type_: str) -> int:
    """Send a sample of an event at once, and once; the status that the receiver answered. Its batch is SAMPLE_ID.

    Raises:
        RateLimitError: as many samples as may be are being sent.
        RequestError: the receiver has not answered.
    """
    if not _samples.acquire(blocking=False):
        raise RateLimitError(f"{SAMPLES_AT_ONCE} samples are being sent; wait for their receivers.", retry_after=5.0)
    try:
        sample = Event(id=new_id("evt_"), type=type_, data={"id": SAMPLE_ID}, created_at=now())
        status, _, error = _send(context, webhook.url, webhooks.secrets_of(webhook), sample)
    finally:
        _samples.release()
    if status is None:
        raise RequestError(f"The sample could not be delivered: {error}", code="webhook_endpoint_unreachable")
    return status


def _send(context: AppContext, url: str, secrets: list[str], event: Event) -> tuple[int | None, float, str | None]:
    """(the answer's status, seconds it asks to wait, why the event was not delivered)."""
    body, headers = signed(event, secrets)
    try:
        answer = outbound.post(url, body, headers, allow_private=context.settings.webhooks_allow_private)
    except RequestError as error:
        return None, 0.0, error.message
    except OSError as error:
        return None, 0.0, str(error) or type(error).__name__
    except HTTPException:  # its text is the receiver's own
        return None, 0.0, "the receiver's answer is not HTTP"
    if 200 <= answer.status < 300:
        return answer.status, 0.0, None
    return (
        answer.status,
        retry_after.seconds(answer.retry_after, time.time()) or 0.0,
        f"the receiver answered {answer.status}",
    )


def payload(event: Event) -> dict[str, Any]:
    """An event as its receivers see it."""
    return {
        "id": event.id,
        "object": "event",
        "created_at": event.created_at,
        "type": event.type,
        "data": event.data,
    }


def signed(event: Event, secrets: list[str]) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request, signed now with each secret, as Standard Webhooks says; its id is the event's."""
    body = orjson.dumps(payload(event))
    moment = datetime.now(UTC)
    return body, {
        "Content-Type": "application/json",
        "User-Agent": f"Batchyard/{__version__}",
        "webhook-id": event.id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": " ".join(Signer(secret).sign(event.id, moment, body.decode()) for secret in secrets),
    }


def pause(attempt: int, retry_after: float = 0.0) -> float:
    """Seconds from failed attempt number `attempt` (from 1) to the next: the back-off, or longer if the receiver
    asks."""
    return max(BACKOFF.seconds(attempt), min(retry_after, BACKOFF.longest))
