"""The admission queue in front of an engine: it bounds the requests in the engine and decides which enter next."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator

Rank = tuple[float, int]
"""The lower rank enters first: the session's rank, then the request's position in the session."""
FIRST: Rank = (float("-inf"), 0)


class AdmissionQueue:
    """Admits at most `size` requests to the engine, the lowest rank first. A caller can reserve the whole engine."""

    def __init__(self, size: int) -> None:
        self.inside = 0
        self._size = size
        self._queue: list[tuple[Rank, int, int, asyncio.Future[None]]] = []
        self._number = itertools.count()

    @contextlib.asynccontextmanager
    async def admit(self, rank: Rank) -> AsyncIterator[None]:
        """Wait until a request of this rank is admitted. It is in the engine until the block ends."""
        await self._enter(1, rank)
        try:
            yield
        finally:
            self._leave(1)

    async def drain(self) -> None:
        """Wait until the engine is empty, ahead of the queue, and admit nothing else until `reopen`."""
        await self._enter(self._size, FIRST)

    def reopen(self) -> None:
        """End the reservation of `drain`."""
        self._leave(self._size)

    async def _enter(self, places: int, rank: Rank) -> None:
        admitted = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (rank, next(self._number), places, admitted))
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._leave(places)
            else:
                self._admit()
            raise

    def _leave(self, places: int) -> None:
        self.inside -= places
        self._admit()

    def _admit(self) -> None:
        while self._queue:
            _, _, places, admitted = self._queue[0]
            if not admitted.cancelled():
                if self.inside + places > self._size:
                    return
                self.inside += places
                admitted.set_result(None)
            heapq.heappop(self._queue)
