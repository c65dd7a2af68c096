"""Messages to workers: Celery tasks sent by name. A lost one is found again by housekeeping."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from celery import chain, current_app
from kombu.exceptions import OperationalError

log = logging.getLogger(__name__)


def _deliver(message: Any, **ids: object) -> None:
    try:
        message.apply_async(retry=False)
    except OperationalError as error:
        # The record says what is to be done; housekeeping sends the message again when the broker is back.
        log.warning("broker is away, the message will be sent again: %s", error, extra=ids)


def validate(batch_id: str) -> None:
    _deliver(current_app.signature("batch.validate", args=(batch_id,), immutable=True), batch_id=batch_id)


def segment(segment_id: int, epoch: int) -> None:
    message = current_app.signature("batch.segment", args=(segment_id, epoch), immutable=True)
    _deliver(message, segment_id=segment_id)


def finish(batch_id: str, steps: Iterable[str]) -> None:
    """Merge, then each post-processing step, then the end: one chain."""
    names = [("batch.merge", (batch_id,))]
    links = [current_app.signature(name, args=args, immutable=True) for name, args in names]
    links += [
        current_app.signature(f"post.{step}", args=(batch_id, position), immutable=True)
        for position, step in enumerate(steps)
    ]
    links.append(current_app.signature("batch.finish", args=(batch_id,), immutable=True))
    _deliver(chain(*links), batch_id=batch_id)
