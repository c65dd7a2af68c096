"""Sample events, which a client sends to a webhook to try it."""

import threading

from batchyard.errors import RateLimitError, RequestError
from store import webhooks
from store.records import Event, Webhook, new_id, now
from tasks.context import AppContext
from tasks.webhooks import delivery

# A web server's thread sends a sample, and the receiver may hang: most threads must stay free for other requests.
SAMPLES_AT_ONCE = 4
SAMPLE_ID = "batch_sample"
_lock = threading.Lock()
_sending: list[str] = []
"""The project of each sample that is being sent."""


def send_sample(context: AppContext, webhook: Webhook, type_: str) -> int:
    """Send a sample event now; return the response's status. Raises RateLimitError; RequestError without a response."""
    if not webhook.url:
        message = "Callbacks go to the URL of their batch or job; run a small batch with a callback_url to try one."
        raise RequestError(message, code="webhook_endpoint_without_url")
    with _lock:
        if len(_sending) >= SAMPLES_AT_ONCE or webhook.project_id in _sending:
            raise RateLimitError("A sample is being sent; wait for its receiver.", retry_after=5.0)
        _sending.append(webhook.project_id)
    try:
        sample = Event(id=new_id("evt_"), type=type_, data={"id": SAMPLE_ID}, created_at=now())
        status, _, error = delivery.send(context, webhook.url, webhooks.secrets_of(webhook), sample)
    finally:
        with _lock:
            _sending.remove(webhook.project_id)
    if status is None:
        raise RequestError(f"The sample could not be delivered: {error}", code="webhook_endpoint_unreachable")
    return status
