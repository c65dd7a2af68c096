"""A time limit for the start of a dataset's actors.

Ray's own (`wait_for_min_actors_s`) blocks the caller where no signal is heard, and leaves the actors when it is left.
"""

from __future__ import annotations

import time
from typing import Any

from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.exceptions import GetTimeoutError


class StartWatch(ExecutionCallback):  # type: ignore[misc]  # Ray has no types
    """Ends a dataset's run with GetTimeoutError when one of its actor pools has no actor after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started = False
        self._began = time.monotonic()

    def on_execution_step(self, executor: Any) -> None:
        if self._started:
            return
        pools = [operator.get_actor_info() for operator in executor._topology]
        self._started = all(pool.running or not pool.pending for pool in pools)
        if not self._started and time.monotonic() - self._began > self._seconds:
            raise GetTimeoutError(f"no actor started within {self._seconds:g} seconds")
