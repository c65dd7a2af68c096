"""Turns at the web app, which has few threads: nobody has more than a part of them, and a slow client only its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from batchyard.errors import RateLimitError, UnavailableError
from batchyard.queues import WEB_THREADS

PLACES = WEB_THREADS - 4
"""Requests in the web app at once. What needs no turn, /readyz, always finds a thread."""
PLACES_EACH = 8
"""Of these with one key, or of one address without a key."""
REQUESTS_EACH = 256
"""Requests of one sender, with those that wait for their turn."""
WAIT_SECONDS = 60.0


class Places:
    """Who may have the web app answer a request."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(PLACES)
        self._senders: dict[str, _Sender] = {}

    async def take(self, sender: str) -> Callable[[], None]:
        """Wait for a sender's turn. Return what ends it, once or twice. Raises RateLimitError, UnavailableError."""
        own = self._senders.setdefault(sender, _Sender())
        if own.requests >= REQUESTS_EACH:
            message = f"More than {REQUESTS_EACH} requests at once with one key; wait for answers."
            raise RateLimitError(message, retry_after=1.0)
        own.requests += 1
        with contextlib.ExitStack() as taken:
            taken.callback(self._leave, sender, own)
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    # A sender's own places first: so it never has more than these in the line of all.
                    for places in (own.places, self._all):
                        await places.acquire()
                        taken.callback(places.release)
            except TimeoutError:
                message = f"The server was busy for {WAIT_SECONDS:g} s; send the request again."
                raise UnavailableError(message) from None
            return taken.pop_all().close

    def _leave(self, sender: str, own: _Sender) -> None:
        own.requests -= 1
        if not own.requests:
            del self._senders[sender]


class _Sender:
    def __init__(self) -> None:
        self.places = asyncio.Semaphore(PLACES_EACH)
        self.requests = 0
