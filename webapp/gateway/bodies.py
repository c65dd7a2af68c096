"""Bodies of requests in memory: read at their client's pace, decompressed, each and all of them limited."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from aiohttp import web

from batchyard.errors import RateLimitError, TooLargeError, UnavailableError
from batchyard.settings import Settings
from webapp.encodings import Inflater, encoding_of
from webapp.gateway.pace import Pace

SHARE = 4
"""One sender may have this part of all bytes: so many have to work together to fill the memory."""


class BodyMemory:
    """Counts the bytes of bodies that are in memory, by sender."""

    def __init__(self, settings: Settings) -> None:
        self._most = settings.body_memory_bytes
        self._most_each = max(self._most // SHARE, settings.max_line_bytes)
        self._sizes: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, sender: str) -> Iterator[HeldBytes]:
        """Hold bytes of a sender, at most until the block ends."""
        held = HeldBytes(self, sender)
        try:
            yield held
        finally:
            held.release()

    def add(self, sender: str, size: int) -> None:
        """Count bytes; a negative size gives them back. Raises RateLimitError, UnavailableError."""
        if size > 0 and self._sizes[sender] + size > self._most_each:
            raise RateLimitError(
                f"Requests with one key may have {self._most_each} bytes here at once; wait for answers, then send "
                "this one again.",
                retry_after=1.0,
            )
        if size > 0 and self._sizes.total() + size > self._most:
            raise UnavailableError("The gateway holds as many bytes of requests as it may; send this one again.")
        self._sizes[sender] += size
        if not self._sizes[sender]:
            del self._sizes[sender]


class HeldBytes:
    def __init__(self, memory: BodyMemory, sender: str) -> None:
        self._memory, self._sender = memory, sender
        self._size = 0

    def grow(self, size: int) -> None:
        """Hold at least so many bytes. Raises RateLimitError, UnavailableError."""
        if size > self._size:
            self._memory.add(self._sender, size - self._size)
            self._size = size

    def release(self) -> None:
        self._memory.add(self._sender, -self._size)
        self._size = 0


async def read(request: web.Request, most: int, pace: Pace, held: HeldBytes, too_large: TooLargeError) -> bytes:
    """Return a request's body, decompressed.

    Raises TooLargeError above `most` bytes; TooSlowError; RequestError if it cannot be decompressed; and without memory
    RateLimitError, UnavailableError.
    """
    encoding = encoding_of(request.headers.get("Content-Encoding"))
    inflater = Inflater(encoding) if encoding else None
    body = bytearray()
    if inflater is None:
        if (request.content_length or 0) > most:
            raise too_large
        held.grow(request.content_length or 0)
    while data := await pace.receive(request.content.readany()):
        for piece in inflater.pieces(data) if inflater else (data,):
            if len(body) + len(piece) > most:
                raise too_large
            held.grow(len(body) + len(piece))
            body += piece
    if inflater:
        inflater.end()
    return bytes(body)
