"""Interruption: a heartbeat's thread ends the main thread's wait for the engine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """The segment is no longer wanted, or another holder has it."""


class Interruption:
    """Raises Stopped in the main thread, but only during `call`, its wait for the engine."""

    def __init__(self) -> None:
        self._waiting = False
        self._raised = False

    def __enter__(self) -> Interruption:
        self._previous = signal.signal(signal.SIGUSR2, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGUSR2, self._previous)

    def interrupt(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._waiting:
            self._waiting, self._raised = False, True
            raise Stopped

    def call(self, function: Callable[[], T]) -> T:
        """Return the function's result. Raises Stopped if `interrupt` is called before it returns."""
        self._waiting, self._raised = True, False
        try:
            return function()
        except Exception as error:
            if self._raised:  # Ray's C code turns an exception that meets one of its own into a SystemError
                raise Stopped from error
            raise
        finally:
            self._waiting = False
