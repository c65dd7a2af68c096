"""Messages about jobs to workers: Celery tasks sent by name. Housekeeping sends a lost one again."""

import logging

import redis

from store.jobs import lifecycle
from tasks.context import AppContext
from tasks.messages import send, signature
from tasks.published import warned

log = logging.getLogger(__name__)

WAKE_SECONDS = 10
"""A message that has not woken its job by then counts as lost."""


def validate(job_id: str, name: str | None = None) -> None:
    send(signature("job.validate", job_id, name=name), job_id=job_id)


def advance(job_id: str, countdown: float = 0.0) -> None:
    """Send a job to a worker that advances it, `countdown` seconds from now."""
    send(signature("job.advance", job_id), countdown, job_id=job_id)


def _wake_key(job_id: str) -> str:
    """Return the Redis key that is there while a message wakes a job."""
    return f"batchyard:wake:{job_id}"


def woken(client: redis.Redis, job_id: str) -> None:
    """Note that a wake message has come: later events need another."""
    with warned(log, "job not noted as woken", job_id=job_id):
        client.delete(_wake_key(job_id))


def wake(client: redis.Redis, job_id: str, countdown: float = 0.0) -> None:
    """Have a job advanced, unless a message is on its way."""
    with warned(log, "job not woken", job_id=job_id):
        if client.set(_wake_key(job_id), 1, nx=True, ex=WAKE_SECONDS):
            advance(job_id, countdown)


def wake_parent(client: redis.Redis, parent_id: str | None) -> None:
    if parent_id is not None:
        wake(client, parent_id)


def finish(job_id: str) -> None:
    send(signature("job.finish", job_id), job_id=job_id)


def finish_ready(context: AppContext) -> None:
    """Start to finish every job whose items and batches have all ended."""
    with context.database.read() as session:
        if not lifecycle.any_ends(session):  # the usual case, without waiting for the write lock
            return
    with context.database.write() as session:
        ready = lifecycle.claim_finishable(session, context.settings.queue_seconds)
    for job_id in ready:
        finish(job_id)


def stop_engine(model: str) -> None:
    send(signature("engine.stop", model), model=model)
