"""The gate in front of an engine: how many requests are in it, and who has it alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class Gate:
    """Lets at most `size` requests into the engine, first come first served; one list can have the engine alone."""

    def __init__(self, size: int) -> None:
        self.inside = 0
        self._size = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def admit(self, requests: int) -> AsyncIterator[None]:
        """Wait for room for `requests`; more than fit at once count as a full engine."""
        places = min(requests, self._size)
        await self._enter(places)
        try:
            yield
        finally:
            self._leave(places)

    async def drain(self) -> None:
        """Wait until the engine is empty, and keep everyone else out until `reopen`."""
        await self._enter(self._size)

    def reopen(self) -> None:
        self._leave(self._size)

    async def _enter(self, places: int) -> None:
        if not self._waiting and self.inside + places <= self._size:
            self.inside += places
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((places, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(places)
            raise

    def _leave(self, places: int) -> None:
        self.inside -= places
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.cancelled():
                if self.inside + wanted > self._size:
                    return
                self.inside += wanted
                turn.set_result(None)
            self._waiting.popleft()
