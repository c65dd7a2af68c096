"""Streams of live answers: server-sent events, and comments while there are none.

The status says what an engine has answered, if it answers within COMMENT_SECONDS. After that it is 200, and an error is
an event, as in the middle of a stream.
"""

import asyncio
import time
from collections.abc import Mapping

from aiohttp import web

from batchyard import json_lines
from batchyard.endpoints import stream_events
from webapp.gateway.pace import Pace

COMMENT_SECONDS = 10.0
COMMENT = b": waiting\n\n"
LOOK_SECONDS = 1.0


class EventStream:
    """The stream of one answer, and the response that begins with its first event."""

    def __init__(self, request: web.Request, endpoint: str, headers: Mapping[str, str], pace: Pace) -> None:
        self._request, self._endpoint, self._pace = request, endpoint, pace
        own = {"Content-Type": "text/event-stream; charset=utf-8"}
        # Without the last one nginx would wait for more.
        self.response = web.StreamResponse(headers={**headers, **own, "X-Accel-Buffering": "no"})
        self._tail = b"\n\n"
        self._sent_at = time.monotonic()
        self._ended = False

    async def begin(self) -> None:
        if not self.response.prepared:
            await self.response.prepare(self._request)

    async def send(self, data: bytes) -> None:
        """Send a piece of the stream. Raises ConnectionError."""
        await self.begin()
        self._tail = (self._tail + data)[-4:]
        await self._pace.send(self._request, self.response.write(data), len(data))
        self._sent_at = time.monotonic()

    async def comment(self) -> None:
        """Send a comment if nothing was sent for COMMENT_SECONDS, and the last event is whole."""
        silent = time.monotonic() - self._sent_at >= COMMENT_SECONDS
        whole = self._tail.endswith((b"\n\n", b"\r\n\r\n"))
        if silent and whole and not self._ended and not self._request.protocol.writing_paused:
            await self.send(COMMENT)

    async def end(self) -> web.StreamResponse:
        self._ended = True
        await self._pace.send(self._request, self.response.write_eof(), 0)
        return self.response

    async def fail(self, answer: web.Response) -> web.StreamResponse:
        """Send an error's response as an event, since the headers are sent."""
        assert isinstance(answer.body, bytes)
        await self.send(stream_events.error(self._endpoint, json_lines.loads(answer.body)["error"]))
        return await self.end()


class OpenStreams:
    """The streams that are open: sends comments in those that are silent."""

    def __init__(self) -> None:
        self._open: set[EventStream] = set()
        self.add, self.discard = self._open.add, self._open.discard

    async def run(self) -> None:
        """Send comments until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for stream in list(self._open):
                try:
                    await stream.comment()
                except ConnectionError:  # its client has gone, which its request sees
                    self._open.discard(stream)
