"""The gate in front of an engine: how many requests are in it, whose turn is next, and who has it alone."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator

Rank = tuple[float, int]
"""Lower goes first: a run's own rank, and where in the run a list stands."""
FIRST: Rank = (float("-inf"), 0)


class AdmissionQueue:
    """Lets at most `size` requests into the engine, the lowest rank first; one list can have the engine alone."""

    def __init__(self, size: int) -> None:
        self.inside = 0
        self._size = size
        self._queue: list[tuple[Rank, int, int, asyncio.Future[None]]] = []
        self._number = itertools.count()

    @property
    def waiting(self) -> int:
        """Requests that wait to be let in."""
        return sum(places for _, _, places, turn in self._queue if not turn.cancelled())

    @contextlib.asynccontextmanager
    async def admit(self, requests: int, rank: Rank) -> AsyncIterator[None]:
        """Wait for room for `requests`; more than fit at once count as a full engine."""
        places = min(requests, self._size)
        await self._enter(places, rank)
        try:
            yield
        finally:
            self._leave(places)

    async def drain(self) -> None:
        """Wait until the engine is empty, before all who wait, and keep everyone else out until `reopen`."""
        await self._enter(self._size, FIRST)

    def reopen(self) -> None:
        self._leave(self._size)

    async def _enter(self, places: int, rank: Rank) -> None:
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (rank, next(self._number), places, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(places)
            else:
                self._admit()
            raise

    def _leave(self, places: int) -> None:
        self.inside -= places
        self._admit()

    def _admit(self) -> None:
        while self._queue:
            _, _, wanted, turn = self._queue[0]
            if not turn.cancelled():
                if self.inside + wanted > self._size:
                    return
                self.inside += wanted
                turn.set_result(None)
            heapq.heappop(self._queue)
