"""A webhook receiver: a real HTTP or HTTPS server on loopback that records requests."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai

from tests.support.stacks import PATIENCE

client = openai.OpenAI(api_key="none")


@dataclass
class Received:
    """One request, with the time of its arrival."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def unwrap(self, secret: str) -> Any:
        """Return the event after the `openai` package has verified its signature."""
        return client.webhooks.unwrap(self.body, self.headers, secret=secret)


@dataclass
class Receiver:
    """A receiver that answers with `status` and `headers`. `stall` is called with the socket before the answer.

    Nobody else gets its port. The port refuses connections until the receiver is `listening`.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    stall: Callable[[Any], None] | None = None
    received: list[Received] = field(default_factory=list)
    socket: socket.socket = field(default_factory=socket.socket)
    port: int = field(init=False)

    def __post_init__(self) -> None:
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]

    def url(self, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}/hook?from=yard"

    def wait(self, number: int, seconds: float = 60) -> list[Received]:
        """Wait until `number` requests have arrived, and return all."""
        deadline = time.monotonic() + PATIENCE * seconds
        while len(self.received) < number:
            assert time.monotonic() < deadline, f"{len(self.received)} of {number} within {seconds} s"
            time.sleep(0.02)
        return self.received


@contextmanager
def listening(receiver: Receiver, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Start a receiver, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.received.append(Received(self.path, dict(self.headers.items()), body))
            if receiver.stall is not None:
                receiver.stall(self.connection)
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"thank you")

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            pass  # the client is gone

    with Server(("127.0.0.1", receiver.port), Handler, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = receiver.socket if tls is None else tls.wrap_socket(receiver.socket, server_side=True)
        server.server_activate()
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield receiver
        server.shutdown()
