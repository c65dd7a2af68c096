"""Waits for Ray that end when work is no longer wanted. Ray's own cannot be ended."""

import time
from collections.abc import Sequence
from threading import Event

import ray

from batchyard.errors import Stopped

SLICE_SECONDS = 0.2
"""The longest between two looks at the event."""


def wait(
    references: Sequence[ray.ObjectRef], stopped: Event, *, timeout: float, num_returns: int = 1
) -> tuple[list[ray.ObjectRef], list[ray.ObjectRef]]:
    """Wait as `ray.wait` does. Raises Stopped if `stopped` is set."""
    until = time.monotonic() + timeout
    while not stopped.is_set():
        left = max(0.0, until - time.monotonic())
        ready, missing = ray.wait(list(references), num_returns=num_returns, timeout=min(left, SLICE_SECONDS))
        if len(ready) >= num_returns or left <= SLICE_SECONDS:
            return ready, missing
    raise Stopped
