"""Processes that run what authors of recipes, rewards and gates have written, since a process can be killed."""

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pebble import ProcessExpired, ProcessPool


class KillablePool:
    """Processes that are killed with a call that takes too long. They start with the first call."""

    def __init__(self, number: int, seconds: float, load: Callable[[], object] | None = None) -> None:
        """Limit each call to `seconds`. `load`, which can be pickled, runs before the first call without a limit."""
        self._number = number
        self._seconds = seconds
        self._load = load
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        with self._lock:
            if self._pool is None or not self._pool.active:
                context = multiprocessing.get_context("spawn")  # this process has threads and connections
                self._pool = ProcessPool(max_workers=self._number, context=context, initializer=self._load)
            pool = self._pool
        future: Future[Any] = pool.schedule(function, args=args, timeout=self._seconds)
        return future

    def reason(self, error: Exception) -> str:
        """Return in words why a call failed, by what its future raises."""
        if isinstance(error, TimeoutError):
            return f"ran longer than {self._seconds:g} seconds"
        if isinstance(error, ProcessExpired):
            return f"its process ended with exit code {error.exitcode}"
        return f"{type(error).__name__}: {error}"

    def close(self) -> None:
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
