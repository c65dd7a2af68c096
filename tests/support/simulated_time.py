"""An event loop with simulated time: it jumps to the next timer, so waits take no time and end exactly when due."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Clock(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)  # type: ignore[no-any-return]


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The loop. Nothing outside of it, such as a thread or a network, may be waited for.

    Attributes:
        timers: how many were set.
    """

    timers = 0

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def call_at(self, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(*arguments, **options)


def run(scene: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from time 0 on."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(scene)
