"""Messages to workers: Celery tasks sent by name. Housekeeping sends a lost one again."""

import logging
from collections.abc import Sequence

from celery import Signature, Task, chain, current_app
from kombu.exceptions import OperationalError

from batchyard.wording import quoted

log = logging.getLogger(__name__)


def signature(task: str, *args: object, name: str | None = None) -> Signature:
    """Return a message. Flower shows its arguments, and the `name` by which people know the batch or the job."""
    message = current_app.signature(task, args=args, immutable=True)
    if name:
        shown = [*args[:1], quoted(name), *args[1:]]
        message.set(argsrepr=f"({', '.join(map(str, shown))})")
    return message


def send(message: Signature, countdown: float = 0.0, **ids: object) -> None:
    try:
        message.apply_async(retry=False, countdown=countdown or None)
    except OperationalError as error:
        # The database has the work, so housekeeping sends the message again when the broker is back.
        log.warning("broker is away, the message will be sent again: %s", error, extra=ids)


def send_again(task: Task) -> None:
    """Send the message of a running task once more, behind those that wait."""
    message = current_app.signature(task.name, args=task.request.args, immutable=True)
    send(message.set(argsrepr=task.request.argsrepr), task=task.name)


def validate(batch_id: str, name: str | None = None) -> None:
    send(signature("batch.validate", batch_id, name=name), batch_id=batch_id)


def advance(batch_id: str) -> None:
    """Have started what may start now, since an open batch has got requests, or was closed."""
    send(signature("batch.advance", batch_id), batch_id=batch_id)


def segment(segment_id: int, epoch: int, batch_id: str, number: int, name: str) -> None:
    """Send a segment to a worker. Flower shows id and name of its batch, and the segment's `number` in it, from 1."""
    message = signature("batch.segment", segment_id, epoch)
    message.set(argsrepr=f"({batch_id}, {quoted(name)}, segment {number + 1}, epoch {epoch})")
    send(message, batch_id=batch_id, segment_id=segment_id)


def deliver(delivery_id: str, attempts: int) -> None:
    send(signature("webhook.deliver", delivery_id, attempts), delivery_id=delivery_id)


def finish(batch_id: str, steps: Sequence[str], name: str | None = None) -> None:
    """Send the finishing of a batch. Its worker does what has its turn, and sends the steps of what it has merged."""
    arguments = ("batch.merge", batch_id) if steps else ("batch.finish", batch_id, True)
    send(signature(*arguments, name=name), batch_id=batch_id)


def steps(batch_id: str, names: Sequence[str], name: str | None = None) -> None:
    """Send the steps of a merged batch and its end, as a chain."""
    links = [signature(f"post.{step}", batch_id, position, name=name) for position, step in enumerate(names)]
    send(chain(*links, signature("batch.finish", batch_id, name=name)), batch_id=batch_id)


def periodic(task: str, seconds: float) -> None:
    """Send a task that is sent again at each tick. A message that waits longer than `seconds` does no more."""
    send(signature(task).set(expires=seconds))
