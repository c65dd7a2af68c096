"""Passes requests on to the web app, and its responses back, piece by piece.

The web app has a thread for each request that it answers. So small bodies are passed on once they are whole, larger
ones at the pace that `webapp.gateway.pace` asks for, and each sender in its turn (`webapp.gateway.places`).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from batchyard.errors import TooSlowError
from batchyard.settings import Settings
from webapp.gateway import errors, tickets
from webapp.gateway.bodies import BodyMemory, HeldBytes
from webapp.gateway.pace import Pace
from webapp.gateway.places import Places

HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
}
"""Headers of one connection (RFC 9110, section 7.6.1)."""
CONNECT_SECONDS = 5.0
PIECE_BYTES = 256 * 1024
SMALL_BYTES = 1024 * 1024
"""A body of so many bytes is passed on once it is whole."""
SENT_BYTES = 32 * 1024
"""What a client is given at a time: a slow one is seen to read, and one that reads nothing is soon seen not to."""
AT_ONCE = frozenset({"/readyz"})

log = logging.getLogger(__name__)


class WebApp:
    """The web app behind the gateway, at `http://host:port`, or `unix:/path` of a socket.

    `answer_live` answers the live requests that the web app hands over (see webapp.gateway.tickets).
    """

    def __init__(self, url: str, answer_live: tickets.Answer, settings: Settings, memory: BodyMemory) -> None:
        self._settings, self._memory, self._places = settings, memory, Places()
        self._answer_live = answer_live
        path = url.removeprefix("unix:") if url.startswith("unix:") else None
        self._base = "http://web" if path else url
        connector: aiohttp.BaseConnector = (
            # The web app closes idle connections after 60 s (services.web), and one at a closed one fails.
            aiohttp.UnixConnector(path, limit=0, keepalive_timeout=30.0)
            if path
            else aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0)
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            read_bufsize=PIECE_BYTES,
        )

    async def close(self) -> None:
        await self._session.close()

    async def answer(self, request: web.Request, sender: str, *, with_body: bool) -> web.StreamResponse:
        """Pass a request on in its sender's turn, and return the web app's response.

        The web app refuses it without its body. Raises TooSlowError; RateLimitError, UnavailableError: it is not the
        sender's turn, or there is no memory for the body; ConnectionError: the client reads too slowly, or has gone.
        """
        pace = Pace(self._settings)
        with contextlib.ExitStack() as stack:
            held = stack.enter_context(self._memory.hold(sender))
            body = _Body(request, pace) if with_body and request.can_read_body else None
            if body is not None and (request.content_length or 0) <= SMALL_BYTES:
                held.grow(request.content_length or 0)
                await body.read_first(SMALL_BYTES, held)
            over = (lambda: None) if request.path in AT_ONCE else await self._places.take(sender)
            stack.callback(over)
            headers = _forwarded(request)
            if not with_body:
                headers.popall("Content-Length", None)
            try:
                upstream = await self._session.request(
                    request.method,
                    self._base + request.raw_path,
                    headers=headers,
                    data=None if body is None else body.sent(),
                    allow_redirects=False,
                )
            except aiohttp.ClientConnectorError as error:
                log.warning("web app not reached: %s", error)
                fault = {"message": "The web app does not answer; it may be starting. Try again."}
                return errors.response(request.path, 503, fault)
            except aiohttp.ClientError as error:
                if body is not None and body.problem is not None:
                    raise body.problem from error
                log.warning("web app failed a request: %s", error)
                fault = {"message": "The web app ended while it had the request. Try again."}
                return errors.response(request.path, 502, fault)
            del body
            held.release()
            try:
                upstream.content.on_eof(over)  # the web app's thread is free, however slowly the client reads
                if tickets.HEADER in upstream.headers:
                    return await tickets.redeem(request, await upstream.read(), upstream.headers, self._answer_live)
                return await _passed_back(request, upstream, pace)
            finally:  # its connection is kept if it was read to its end
                (upstream.release if upstream.content.at_eof() else upstream.close)()


async def _passed_back(request: web.Request, upstream: aiohttp.ClientResponse, pace: Pace) -> web.StreamResponse:
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason)
    for name, value in _passed_on(upstream.headers).items():
        response.headers.add(name, value)
    await response.prepare(request)
    if request.method != "HEAD":
        async for piece in upstream.content.iter_any():
            for at in range(0, len(piece), SENT_BYTES):
                part = piece[at : at + SENT_BYTES]
                await pace.send(request, response.write(part), len(part))
    await pace.send(request, response.write_eof(), 0)
    return response


class _Body:
    """A body on its way to the web app. `problem`: why it was not read to its end."""

    def __init__(self, request: web.Request, pace: Pace) -> None:
        self._request, self._pace = request, pace
        self._first = bytearray()
        self._whole = False
        self.problem: TooSlowError | None = None

    async def read_first(self, most: int, held: HeldBytes) -> None:
        """Read until its end, or until there are more than so many bytes. Raises as WebApp.answer."""
        while len(self._first) <= most:
            piece = await self._pace.receive(self._request.content.readany())
            if not piece:
                self._whole = True
                return
            self._first += piece
            held.grow(len(self._first))

    def sent(self) -> bytes | AsyncIterator[bytes]:
        """Return what is sent: all of it, or its pieces as they come."""
        return bytes(self._first) if self._whole else self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._first:
            yield bytes(self._first)
        try:
            while piece := await self._pace.receive(self._request.content.readany()):
                yield piece
                await asyncio.sleep(0)
        except TooSlowError as error:
            self.problem = error
            raise


def _forwarded(request: web.Request) -> CIMultiDict[str]:
    headers = _passed_on(request.headers)
    headers.popall("Expect", None)  # the gateway has answered that
    for name, value in (("X-Forwarded-For", request.remote or ""), ("X-Forwarded-Proto", request.scheme)):
        headers.popall(name, None)
        headers[name] = ", ".join([*request.headers.getall(name, []), value])  # also one that `Connection` names
    return headers


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for value in headers.getall("Connection", []) for name in value.split(",")}
    left_out = HOP_BY_HOP | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in left_out)
