"""The pace of a client: how long the gateway waits for the next bytes of a request, or until those of a response go.

A client may pause for BATCHYARD_TRANSFER_PAUSE_SECONDS. What it pauses is used up, and each of its bytes gives some of
it back, so that on the average it has to send and to read BATCHYARD_TRANSFER_BYTES_PER_SECOND.
"""

import asyncio
from collections.abc import Awaitable

from aiohttp import web

from batchyard.errors import TooSlowError
from batchyard.settings import Settings


class Pace:
    """What one request's client has left of its pauses."""

    def __init__(self, settings: Settings) -> None:
        self._pause = self._left = float(settings.transfer_pause_seconds)
        self._rate = settings.transfer_bytes_per_second

    async def receive(self, reading: Awaitable[bytes]) -> bytes:
        """Return what a client sends next. Raises TooSlowError."""
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._left):
                data = await reading
        except TimeoutError:
            raise TooSlowError(
                f"The request came too slowly: a client may pause for {self._pause:g} s, and has to send {self._rate} "
                "bytes a second on the average. Send it again, a large file in parts (POST /v1/uploads)."
            ) from None
        self._use(began, len(data))
        return data

    async def send(self, request: web.Request, writing: Awaitable[None], size: int) -> None:
        """Wait until so many bytes of the response are on their way. Raises ConnectionError."""
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._left + size / self._rate):
                await writing
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # to close it would wait for the client, too
            raise ConnectionResetError("the client reads too slowly") from None
        self._use(began, size)

    def _use(self, began: float, size: int) -> None:
        self._left = min(self._pause, self._left - (asyncio.get_running_loop().time() - began) + size / self._rate)
