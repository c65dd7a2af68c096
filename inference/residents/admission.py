"""The admission queue: bounds the requests in an engine and decides which enter next."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

Rank = tuple[float, int]
"""The lower rank enters first: the session's rank, then the request's position in the session."""
FIRST: Rank = (float("-inf"), 0)


class _QueueEntry(NamedTuple):
    """What waits to enter. `admitted` gets the tokens that it enters with."""

    rank: Rank
    number: int
    places: int
    need: Callable[[], int]
    admitted: asyncio.Future[int]


class AdmissionQueue:
    """Admits at most `size` requests of `tokens` together, the lowest rank first. A caller can reserve the engine.

    One request is admitted to an empty engine, whatever its size.
    """

    def __init__(self, size: int, tokens: float = math.inf) -> None:
        self.inside = 0
        self._size = size
        self._tokens = tokens
        self._tokens_inside = 0
        self._queue: list[_QueueEntry] = []
        self._number = itertools.count()

    @contextlib.asynccontextmanager
    async def admit(self, rank: Rank, need: Callable[[], int] = lambda: 0) -> AsyncIterator[None]:
        """Wait until a request of this rank is admitted. It is in the engine until the block ends.

        `need` returns the tokens that are expected of it. It is called when it is the request's turn, since those that
        were answered meanwhile may have taught better.
        """
        tokens = await self._enter(1, rank, need)
        try:
            yield
        finally:
            self._leave(1, tokens)

    async def drain(self) -> None:
        """Wait until the engine is empty, ahead of the queue, and admit nothing else until `reopen`."""
        await self._enter(self._size, FIRST)

    def reopen(self) -> None:
        """End the reservation of `drain`."""
        self._leave(self._size)

    async def _enter(self, places: int, rank: Rank, need: Callable[[], int] = lambda: 0) -> int:
        admitted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, _QueueEntry(rank, next(self._number), places, need, admitted))
        self._admit()
        try:
            return await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._leave(places, admitted.result())
            else:
                self._admit()
            raise

    def _leave(self, places: int, tokens: int = 0) -> None:
        self.inside -= places
        self._tokens_inside -= tokens
        self._admit()

    def _admit(self) -> None:
        while self._queue:
            _, _, places, need, admitted = self._queue[0]
            if not admitted.cancelled():
                tokens = need()
                full = self.inside > 0 and self._tokens_inside + tokens > self._tokens
                if full or self.inside + places > self._size:
                    return
                self.inside += places
                self._tokens_inside += tokens
                admitted.set_result(tokens)
            heapq.heappop(self._queue)
