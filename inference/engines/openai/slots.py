"""Turns: requests that wait for a place at one of the endpoints."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from inference.engines.openai.endpoints import Endpoint, choose


class SlotQueue:
    """Hands out places, first come first served; who was given one before and comes again goes first."""

    def __init__(self, endpoints: Mapping[Any, Endpoint]) -> None:
        """`endpoints` may change all the time; `give` when it, or one of them, has become better."""
        self._endpoints = endpoints
        self._waiting: deque[tuple[asyncio.Future[Endpoint], Endpoint | None]] = deque()

    async def acquire(self, end: Callable[[], float], last: Endpoint | None = None) -> Endpoint | None:
        """Wait for a place, and have it until `leave`; None: there was none until `end` (time.monotonic()).

        `last`: where the request was before. It goes there again only if there is no place elsewhere.
        """
        turn: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        if last is None:
            self._waiting.append((turn, None))
        else:
            self._waiting.appendleft((turn, last))
        self.hand_out()
        try:
            while not turn.done():
                left = end() - time.monotonic()
                if left <= 0:
                    return None
                await asyncio.wait([turn], timeout=left)
            return turn.result()
        except asyncio.CancelledError:
            if turn.done():
                self.release(turn.result())
            raise
        finally:
            turn.cancel()

    def release(self, endpoint: Endpoint) -> None:
        endpoint.in_flight -= 1
        self.hand_out()

    def hand_out(self) -> None:
        """Hand out the places that there are now."""
        now = time.monotonic()
        while self._waiting:
            turn, last = self._waiting[0]
            if not turn.done():
                endpoint = choose(self._endpoints.values(), now, last)
                if endpoint is None:
                    return
                endpoint.in_flight += 1
                turn.set_result(endpoint)
            self._waiting.popleft()
