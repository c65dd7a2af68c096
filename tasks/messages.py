"""Messages to workers: Celery tasks sent by name. Housekeeping sends a lost one again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import redis
from celery import Signature, chain, current_app
from kombu.exceptions import OperationalError

from batchyard.wording import quoted

log = logging.getLogger(__name__)

WAKE_SECONDS = 10
"""A message that has not woken its job by then counts as lost."""


def _message(task: str, *args: object, name: str | None = None) -> Signature:
    """Return a message. Flower shows its arguments, and the `name` by which people know the batch or the job."""
    message = current_app.signature(task, args=args, immutable=True)
    if name:
        shown = [*args[:1], quoted(name), *args[1:]]
        message.set(argsrepr=f"({', '.join(map(str, shown))})")
    return message


def _send(message: Signature, countdown: float = 0.0, **ids: object) -> None:
    try:
        message.apply_async(retry=False, countdown=countdown or None)
    except OperationalError as error:
        # The database has the work, so housekeeping sends the message again when the broker is back.
        log.warning("broker is away, the message will be sent again: %s", error, extra=ids)


def validate(batch_id: str, name: str | None = None) -> None:
    _send(_message("batch.validate", batch_id, name=name), batch_id=batch_id)


def advance(batch_id: str) -> None:
    """Have started what may start now, since an open batch has got requests, or was closed."""
    _send(_message("batch.advance", batch_id), batch_id=batch_id)


def segment(segment_id: int, epoch: int, batch_id: str, number: int, name: str) -> None:
    """Send a segment to a worker. Flower shows id and name of its batch, and the segment's `number` in it, from 1."""
    message = _message("batch.segment", segment_id, epoch)
    message.set(argsrepr=f"({batch_id}, {quoted(name)}, segment {number + 1}, epoch {epoch})")
    _send(message, batch_id=batch_id, segment_id=segment_id)


def deliver(delivery_id: str, attempts: int) -> None:
    _send(_message("webhook.deliver", delivery_id, attempts), delivery_id=delivery_id)


def finish(batch_id: str, steps: Sequence[str], name: str | None = None) -> None:
    """Send the finishing of a batch as one chain: the merge, each post-processing step, the end.

    Without a step it is one message.
    """
    if not steps:
        _send(_message("batch.finish", batch_id, True, name=name), batch_id=batch_id)
        return
    links = [_message(f"post.{step}", batch_id, position, name=name) for position, step in enumerate(steps)]
    first, last = (_message(f"batch.{task}", batch_id, name=name) for task in ("merge", "finish"))
    _send(chain(first, *links, last), batch_id=batch_id)


def validate_job(job_id: str, name: str | None = None) -> None:
    _send(_message("job.validate", job_id, name=name), job_id=job_id)


def advance_job(job_id: str, countdown: float = 0.0) -> None:
    """Send a job to a worker that advances it, `countdown` seconds from now."""
    _send(_message("job.advance", job_id), countdown, job_id=job_id)


def _wake_key(job_id: str) -> str:
    """Return the Redis key that is there while a message wakes a job."""
    return f"batchyard:wake:{job_id}"


def woken(client: redis.Redis, job_id: str) -> None:
    """Note that the message that wakes a job has come: what happens from now on needs another one."""
    try:
        client.delete(_wake_key(job_id))
    except redis.RedisError as error:
        log.warning("job not noted as woken: %s", error, extra={"job_id": job_id})


def wake_job(client: redis.Redis, job_id: str, countdown: float = 0.0) -> None:
    """Have a job advanced, unless a message is on its way. Housekeeping replaces lost ones."""
    try:
        if client.set(_wake_key(job_id), 1, nx=True, ex=WAKE_SECONDS):
            advance_job(job_id, countdown)
    except redis.RedisError as error:
        log.warning("job not woken: %s", error, extra={"job_id": job_id})


def wake_parent(client: redis.Redis, parent_id: str | None) -> None:
    """Have the composite advanced that has started a job which has ended; None if no composite has."""
    if parent_id is not None:
        wake_job(client, parent_id)


def finish_job(job_id: str) -> None:
    _send(_message("job.finish", job_id), job_id=job_id)


def periodic(task: str, seconds: float) -> None:
    """Send a task that is sent again at each tick. A message that waits longer than `seconds` does no more."""
    _send(_message(task).set(expires=seconds))


def stop_engine(model: str) -> None:
    """Have the engines of a derived model stopped."""
    _send(_message("engine.stop", model), model=model)
