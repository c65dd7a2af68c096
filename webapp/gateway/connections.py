"""Connections of clients: how many there may be, and how long one may take to send its first request."""

import asyncio
import resource
import socket
from collections import Counter

from aiohttp import web

from batchyard.settings import Settings

UNLIMITED = 2**20
RESERVED = 64
"""Descriptors for all but connections."""
ADDRESS_SHARE = 2
"""One address may have this part of the connections."""
BACKLOG = 1024
KEPT_SECONDS = 75.0
"""Idle connections stay open so long: longer than those of proxies before the gateway."""
REFUSAL_SECONDS = 2.0
"""A connection that is one too many has so long to send the request that is refused."""
UNSENT_BYTES = 64 * 1024
"""The system takes so much beyond what a client can read now."""
LINGER_SECONDS = 2.0
"""What a client still sends is read so long after it was answered: to close at once may lose it the answer."""


class Connections:
    """Makes the connections of an application's server, within the limit of open descriptors (`ulimit -n`)."""

    def __init__(self, settings: Settings) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft = UNLIMITED if soft == resource.RLIM_INFINITY else soft
        # A request needs a descriptor for its connection and one for that to the web app or an engine. As many
        # connections as are served are told that they are too many.
        self.most = max(1, (soft - RESERVED) // 3)
        self.backlog = max(16, min(BACKLOG, soft // 16))
        self.seconds = float(settings.transfer_pause_seconds)
        self._by_address = None if settings.proxies else Counter[str]()
        self._all = 0

    def enter(self, address: str) -> bool | None:
        """Count a connection. True if it is one too many; None if it cannot even be told so."""
        self._all += 1
        of_address = 0
        if self._by_address is not None:
            self._by_address[address] += 1
            of_address = self._by_address[address]
        if self._all > 2 * self.most:
            return None
        return self._all > self.most or of_address > max(1, self.most // ADDRESS_SHARE)

    def leave(self, address: str) -> None:
        self._all -= 1
        if self._by_address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]


class Connection(web.RequestHandler):
    """A client's connection. With `too_many` its requests are refused."""

    def __init__(self, server: web.Server, connections: Connections) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEPT_SECONDS,
            lingering_time=LINGER_SECONDS,
            auto_decompress=False,  # what is compressed goes to the web app as it came
            access_log=None,  # type: ignore[arg-type]
        )
        self.too_many = self.has_sent = False
        self._connections = connections
        self._address = ""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        refused = self._connections.enter(self._address)
        if refused is None:
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
            return
        self.too_many = refused
        seconds = REFUSAL_SECONDS if refused else self._connections.seconds
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._close_if_silent)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # so that what a slow client has read is seen as it reads
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.leave(self._address)
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _close_if_silent(self) -> None:
        if not self.has_sent:
            self.force_close()
