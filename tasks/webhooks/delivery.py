"""Delivery: sends events to webhooks, and retries failed deliveries."""

import logging
import time
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any

from standardwebhooks import Webhook as Signer

from batchyard import __version__, json_lines
from batchyard.backoff import Backoff, retry_after
from batchyard.errors import RequestError
from batchyard.queues import WEBHOOK_THREADS
from batchyard.telemetry import spans
from batchyard.telemetry.spans import Span
from store import webhooks
from store.records import Batch, Event, Job
from store.work import traces
from tasks import messages
from tasks.context import AppContext
from tasks.webhooks import outbound

log = logging.getLogger(__name__)

# The other threads look for due deliveries, however many receivers hang.
AT_ONCE = WEBHOOK_THREADS - 4
AT_ONCE_PER_PROJECT = 4
# Waits of 5, 7.5, 11 … seconds, up to an hour: the last attempt is about a day after the first. Each wait is about half
# the time since the first attempt, so a receiver that was down for an hour has all its events half an hour later.
ATTEMPTS = 38
BACKOFF = Backoff(first=5.0, growth=1.5, longest=3600.0, jitter=(1.0, 1.1))
GONE = 410


def enqueue_due(context: AppContext) -> None:
    with context.database.read() as session:
        if not webhooks.any_due(session, time.time()):
            return
    with context.database.write(serial=True) as session:
        deliveries = webhooks.claim(session, at_once=AT_ONCE, per_project=AT_ONCE_PER_PROJECT)
    for delivery_id, attempts in deliveries:
        messages.deliver(delivery_id, attempts)


def deliver(context: AppContext, delivery_id: str, attempts: int) -> None:
    """Make one attempt, record it, and start other deliveries."""
    with context.database.write() as session:
        attempt = webhooks.begin(session, delivery_id, attempts)
    if attempt is None:
        return
    number = attempts + 1
    with _span(context, attempt.event) as span:
        secrets = webhooks.secrets_of(attempt.webhook)
        status, minimum_wait, error = send(context, attempt.url, secrets, attempt.event)
        span.set({"batchyard.attempt": number, "http.response.status_code": status})
        if error is not None:
            span.fail("undelivered")
    gone = status == GONE
    final = error is None or gone or number >= ATTEMPTS
    wait = None if final else pause(number, minimum_wait)
    with context.database.write() as session:
        if gone:
            webhooks.disable(session, attempt.webhook.id)
        webhooks.record_outcome(session, attempt, status_code=status, error=error, wait=wait)
    ids = {"delivery_id": delivery_id, "webhook_id": attempt.webhook.id, "event_id": attempt.event.id}
    if error is None:
        log.info("event delivered", extra={**ids, "attempt": number})
    else:
        log.warning("event not delivered: %s", error, extra={**ids, "attempt": number, "again_in": wait})
    enqueue_due(context)


def _span(context: AppContext, event: Event) -> Span:
    """Return the span of an attempt, in the trace of what the event is about; a budget has none."""
    if not spans.enabled() or (event.batch_id is None and event.job_id is None):
        return spans.OFF
    with context.database.read() as session:
        work = session.get(Batch, event.batch_id) if event.batch_id else session.get(Job, event.job_id)
    return spans.OFF if work is None else spans.span(f"webhook {event.type}", traces.place(work), "client")


def send(context: AppContext, url: str, secrets: list[str], event: Event) -> tuple[int | None, float, str | None]:
    """Return (status of the response, seconds of its Retry-After, why the event was not delivered)."""
    body, headers = signed(event, secrets)
    try:
        status, again = outbound.post(url, body, headers, allow_private=context.settings.webhooks_allow_private)
    except RequestError as error:
        return None, 0.0, error.message
    except OSError as error:
        return None, 0.0, str(error) or type(error).__name__
    except HTTPException:  # its text quotes the receiver, and is not passed on
        return None, 0.0, "the receiver's answer is not HTTP"
    if 200 <= status < 300:
        return status, 0.0, None
    return status, retry_after(again, time.time()) or 0.0, f"the receiver answered {status}"


def payload(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "object": "event",
        "created_at": event.created_at,
        "type": event.type,
        "data": event.data,
    }


def signed(event: Event, secrets: list[str]) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request, signed now with each secret as Standard Webhooks defines."""
    body = json_lines.dumps(payload(event))
    timestamp = datetime.now(UTC)
    return body, {
        "Content-Type": "application/json",
        "User-Agent": f"Batchyard/{__version__}",
        "webhook-id": event.id,
        "webhook-timestamp": str(int(timestamp.timestamp())),
        "webhook-signature": " ".join(Signer(secret).sign(event.id, timestamp, body.decode()) for secret in secrets),
    }


def pause(attempt: int, minimum: float = 0.0) -> float:
    """Return the seconds from failed attempt number `attempt` (from 1) to the next: the back-off, or `minimum`."""
    return max(BACKOFF.seconds(attempt), min(minimum, BACKOFF.longest))
