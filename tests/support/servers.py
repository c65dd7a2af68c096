"""OpenAI-compatible servers on loopback with scripted replies."""

from __future__ import annotations

import email
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR
from typing import Any


@dataclass
class Reply:
    """The response to one request; `drop` closes the connection in the middle of its body."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    drop: bool = False


@dataclass
class Server:
    """A server that sends the replies of `script`, then repeats the last message of each chat.

    Attributes:
        always: the reply to every request after `script`.
        most: more concurrent requests than this get a 429.
        serves: the name of its model.
        probe: the status of /v1/models.
        files: what there is to fetch beside the API, by path.
        stuck: replies wait for this event, for at most ten minutes.
        asked: the time and the body of each request.
        paths: the path of each request.
        at_once: the number of requests in progress.
    """

    script: list[Reply] = field(default_factory=list)
    always: Reply | None = None
    latency: float = 0.0
    most: int = 10_000
    serves: str = "theirs"
    probe: int = 200
    files: dict[str, Reply] = field(default_factory=dict)
    stuck: threading.Event | None = None
    host: str = "127.0.0.1"
    port: int = 0
    asked: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def chosen(self, body: dict[str, Any]) -> Reply:
        with self.lock:
            self.asked.append((time.monotonic(), body))
            if self.at_once > self.most:
                return Reply(429)
            if self.script:
                return self.script.pop(0)
        return self.always or answer(body)


def answer(body: dict[str, Any]) -> Reply:
    """Return the chat completion that repeats the last message."""
    message = {"role": "assistant", "content": body["messages"][-1]["content"]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    return Reply(body=json.dumps({"model": body["model"], "choices": [choice], "usage": usage}).encode())


def form(content: bytes, kind: str) -> dict[str, Any]:
    """Return the fields of a form of content type `kind`: texts, and of files name, type and bytes."""
    message = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + content)
    fields: dict[str, Any] = {}
    for part in message.walk():
        name, file = (part.get_param(key, header="content-disposition") for key in ("name", "filename"))
        if name is not None:
            data = part.get_payload(decode=True)
            assert isinstance(data, bytes)
            fields[str(name)] = data.decode() if file is None else (file, part.get_content_type(), data)
    return fields


@contextmanager
def serving(*servers: Server) -> Iterator[tuple[Server, ...]]:
    """Start the servers on their ports or free ones, until the block ends."""
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(listening(server))
        yield servers


@contextmanager
def listening(server: Server) -> Iterator[Server]:
    """Start one server on its port or a free one, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            http.open.append(self.connection)

        def do_GET(self) -> None:
            if server.stuck is not None:
                server.stuck.wait(600)
            if self.path in server.files:
                self.say(server.files[self.path])
            elif self.path == "/v1/models" and server.probe == 200:
                self.say(Reply(body=json.dumps({"data": [{"id": server.serves}]}).encode()))
            elif self.path == "/version":
                self.say(Reply(body=b'{"version": "1.2"}'))
            else:
                self.say(Reply(200 if self.path == "/health" and server.probe == 404 else server.probe))

        def do_POST(self) -> None:
            content, kind = self.rfile.read(int(self.headers["Content-Length"])), self.headers["Content-Type"]
            body = form(content, kind) if kind.startswith("multipart/") else json.loads(content)
            server.headers.append(dict(self.headers.items()))
            server.paths.append(self.path)
            with server.lock:
                server.at_once += 1
            reply = server.chosen(body)
            if server.stuck is not None:
                server.stuck.wait(600)
            time.sleep(server.latency)
            with server.lock:
                server.at_once -= 1
            self.say(reply)

        def say(self, reply: Reply) -> None:
            body = reply.body or b""
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(body) + 9 * reply.drop), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = reply.drop

        def log_message(self, *_: Any) -> None:
            pass

    class HTTP(ThreadingHTTPServer):
        request_queue_size = 256
        open: list[Any]

        def handle_error(self, *_: Any) -> None:
            pass  # the client is gone

    with HTTP((server.host, server.port), Handler) as http:
        http.open = []
        server.port = http.server_address[1]
        threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        http.shutdown()
        for connection in http.open:  # as if its process ended
            with suppress(OSError):
                connection.shutdown(SHUT_RDWR)
