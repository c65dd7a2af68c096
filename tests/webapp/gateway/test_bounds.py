"""Clients that send or read slowly, or too much at once, have only themselves to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from batchyard import __version__
from batchyard.local import ports
from batchyard.settings import Settings
from store import keys
from store.database import Database
from tasks.context import AppContext
from tests.support.gateways import LiveEngine, LoopThread, RunningGateway
from tests.support.rows import until
from tests.webapp.gateway.conftest import Send
from webapp.gateway import connections
from webapp.gateway.bodies import BodyMemory
from webapp.gateway.places import PLACES, PLACES_EACH

PAUSE, PATIENT = 1, 60
short = pytest.mark.parametrize("pause", [PAUSE], ids=[""])
CHAT = "/v1/chat/completions"
LARGE = 40 * 2**20


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture(autouse=True)
def _short_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.2)


@pytest.fixture
def pause() -> int:
    """Seconds that a client may pause within a request; tests of a pause that is too long allow fewer."""
    return PATIENT


@pytest.fixture
def settings(broker: str, pause: int) -> Settings:
    return Settings(
        redis_url=broker,
        allow_simulated=True,
        transfer_pause_seconds=pause,
        transfer_bytes_per_second=15_000,
        max_line_bytes=100_000,
        body_memory_bytes=400_000,
    )


class StandIn:
    """A server that stands where the web app does: what it has been sent, and what it is answering."""

    def __init__(self, thread: LoopThread) -> None:
        self.requests: list[tuple[str, int]] = []
        self.inside = 0
        self.most = 0
        going = asyncio.Event()
        self._going = going.wait  # before it answers requests to a path with `held`
        self.let_go = lambda: thread.loop.call_soon_threadsafe(going.set)
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        thread.run(self._runner.setup())
        thread.run(web.TCPSite(self._runner, "127.0.0.1", 0).start())
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.stop = lambda: thread.run(self._runner.cleanup())

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            body = await request.read()
            self.requests.append((request.path, len(body)))
            if "held" in request.path:
                await self._going()
            if "large" not in request.path:
                return web.json_response({"sha256": hashlib.sha256(body).hexdigest()})
            response = web.StreamResponse()
            await response.prepare(request)
            for _ in range(LARGE // 2**16):
                await response.write(bytes(2**16))
            return response
        finally:
            self.inside -= 1


@pytest.fixture
def web_app(thread: LoopThread) -> Iterator[StandIn]:
    running = StandIn(thread)
    yield running
    running.stop()


@pytest.fixture
def gateway(
    live_context: AppContext, thread: LoopThread, engines: dict[str, LiveEngine], web_app: StandIn
) -> Iterator[RunningGateway]:
    running = RunningGateway(thread, live_context, web_app.url, silence=PATIENT)
    yield running
    running.stop()


@pytest.fixture
def other(database: Database) -> dict[str, str]:
    """The headers of another tenant."""
    with database.write() as session:
        return {"Authorization": f"Bearer {keys.create(session, 'other').key}"}


Open = Callable[..., socket.socket]


@pytest.fixture
def sent(gateway: RunningGateway) -> Iterator[Open]:
    """Opens a connection on which so much of a request is sent."""
    with contextlib.ExitStack() as opened:

        def send(head: str, *headers: str, body: bytes = b"", size: int | None = None) -> socket.socket:
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=60))
            lines = [f"{head} HTTP/1.1", "Host: here", *headers]
            if size is not None:
                lines.append(f"Content-Length: {size}")
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            return connection

        yield send


def answered(connection: socket.socket) -> bytes:
    """Return all that comes until the connection is closed."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(2**16):
            data += piece
    return data


@short
def test_a_connection_that_sends_no_whole_request_is_closed(live_context: AppContext, thread: LoopThread) -> None:
    running = RunningGateway(thread, live_context)
    with contextlib.ExitStack() as opened:
        connections = [
            opened.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=60)) for _ in range(2)
        ]
        connections[1].sendall(b"GET /v1/models HTTP/1.1\r\nHost: h")
        assert [answered(connection) for connection in connections] == [b"", b""]
    running.stop()


@short
def test_a_body_that_does_not_come_is_refused_and_the_web_app_never_hears_of_it(
    sent: Open, key: str, web_app: StandIn
) -> None:
    half_sent = {
        path: sent(f"POST {path}", f"Authorization: Bearer {key}", body=b"key=x", size=20_000)
        for path in ("/v1/batches", "/sign-in", CHAT, "/v1/messages")
    }
    for path, connection in half_sent.items():
        answer = answered(connection)
        assert answer.startswith(b"HTTP/1.1 408 ") and b"too slowly" in answer and b"POST /v1/uploads" in answer, path
        assert b'"code":"request_too_slow"' in answer or path == "/v1/messages"
    assert web_app.requests == [], "no thread waits for it"


@pytest.mark.parametrize("header", ["Accept: */*", "Authorization: Bearer by-x-y", "x-api-key: by-x-y"])
def test_without_a_key_the_api_is_asked_at_once_and_without_the_body(sent: Open, web_app: StandIn, header: str) -> None:
    connection = sent("POST /v1/jobs/job_x/items/1", header, body=b"x", size=100_000)
    assert connection.recv(20).startswith(b"HTTP/1.1 200"), "the rest of the body never comes"
    assert web_app.requests == [("/v1/jobs/job_x/items/1", 0)]


def half_sent_upload(sent: Open, key: str) -> socket.socket:
    return sent("POST /v1/files", f"Authorization: Bearer {key}", body=bytes(2**16), size=50 * 2**20)


def test_half_sent_uploads_of_one_key_leave_places_to_others(
    sent: Open, key: str, web_app: StandIn, http: httpx.Client, other: dict[str, str]
) -> None:
    for _ in range(2 * PLACES):
        half_sent_upload(sent, key)
    until(lambda: web_app.most >= PLACES_EACH)
    assert http.get("/v1/models", headers=other).status_code == 200
    assert http.get("/healthz").status_code == 200 and http.get("/readyz").status_code == 200
    assert web_app.most <= PLACES_EACH + 1


@short
def test_half_sent_uploads_end_and_leave_their_places_to_the_next(sent: Open, key: str) -> None:
    uploads = [half_sent_upload(sent, key) for _ in range(PLACES_EACH + 1)]
    assert all(answered(upload).startswith(b"HTTP/1.1 408 ") for upload in uploads)


@short
def test_readers_that_read_nothing_end_and_leave_their_places_to_the_next(
    sent: Open, key: str, web_app: StandIn, http: httpx.Client
) -> None:
    readers = [sent("GET /v1/files/large/content", f"Authorization: Bearer {key}") for _ in range(PLACES_EACH)]
    until(lambda: len(web_app.requests) == PLACES_EACH and not web_app.inside)
    assert all(len(answered(reader)) < LARGE for reader in readers)
    assert http.get("/v1/models").status_code == 200


# test_pace says the same of any pause and any client. Here both pauses outlast one of the whole machine.
@pytest.mark.exhaustive
@pytest.mark.parametrize("pause", [10], ids=[""])
def test_a_client_that_sends_slowly_but_fast_enough_is_waited_for(
    sent: Open, key: str, web_app: StandIn, pause: int
) -> None:
    connection = sent("POST /v1/batches", f"Authorization: Bearer {key}", size=100_000)
    for _ in range(10):
        time.sleep(1.1 * pause / 10)
        connection.sendall(bytes(10_000))
    assert connection.recv(20).startswith(b"HTTP/1.1 200") and web_app.requests == [("/v1/batches", 100_000)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("pause", [8], ids=[""])
def test_a_slow_reader_that_reads_fast_enough_gets_all(sent: Open, key: str, pause: int) -> None:
    connection = sent("GET /v1/files/large/content", f"Authorization: Bearer {key}", "Connection: close")
    size, began = 0, time.monotonic()
    while piece := connection.recv(2**20):
        size += len(piece)
        if time.monotonic() - began < 1.2 * pause:
            time.sleep(0.25)
    assert size > LARGE


def test_pages_get_their_forms_small_or_large_without_a_key(gateway: RunningGateway, web_app: StandIn) -> None:
    for size, content in ((10, iter([bytes(10)])), (2 * 2**20, bytes(2 * 2**20))):
        answer = httpx.post(f"{gateway.url}/new", content=content, timeout=60)
        assert answer.json()["sha256"] == hashlib.sha256(bytes(size)).hexdigest()
    assert web_app.requests == [("/new", 10), ("/new", 2 * 2**20)]


def test_the_web_app_is_never_sent_more_than_it_has_threads_for(
    http: httpx.Client, web_app: StandIn, database: Database
) -> None:
    with database.write() as session:
        tenants = [keys.create(session, f"tenant-{number}").key for number in range(6)]

    def ask(number: int) -> int:
        headers = {"Authorization": f"Bearer {tenants[number % 6]}"}
        return http.post("/v1/held", content=b"x", headers=headers, timeout=600).status_code

    with ThreadPoolExecutor(90) as threads:
        answers = threads.map(ask, range(90))
        try:
            until(lambda: web_app.inside == PLACES)
        finally:
            web_app.let_go()
        assert set(answers) == {200}
    assert web_app.most == PLACES


def test_the_gateway_itself_says_that_it_runs(live_context: AppContext, thread: LoopThread) -> None:
    running = RunningGateway(thread, live_context, "http://127.0.0.1:9")
    assert httpx.get(f"{running.url}/healthz", timeout=60).json() == {"status": "ok", "version": __version__}
    running.stop()


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The bytes of bodies that the gateway has in memory, by sender."""
    sizes, add = Counter[str](), BodyMemory.add

    def counted(memory: BodyMemory, sender: str, size: int) -> None:
        add(memory, sender, size)
        sizes[sender] += size

    monkeypatch.setattr(BodyMemory, "add", counted)
    return sizes


def test_bodies_in_memory_are_limited_for_each_key_and_in_all(
    sent: Open, key: str, http: httpx.Client, send: Send, other: dict[str, str], in_memory: Counter[str]
) -> None:
    """A key has 100,000 bytes here, a quarter of all."""
    held = sent(f"POST {CHAT}", f"Authorization: Bearer {key}", body=b"{", size=90_000)
    until(lambda: in_memory.total() == 90_000)
    refused = send("wagon " * 9000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "bytes here at once" in refused.json()["error"]["message"] and refused.headers["Retry-After"] == "1"
    body = {"model": "echo", "messages": [{"role": "user", "content": "wagon " * 9000}]}
    assert http.post(CHAT, json=body, headers=other).status_code == 200
    held.close()
    until(lambda: send("wagon " * 9000).status_code == 200)  # it is given back


def test_memory_that_is_full_is_said_to_be(
    sent: Open, database: Database, other: dict[str, str], http: httpx.Client, in_memory: Counter[str]
) -> None:
    with database.write() as session:
        tenants = [keys.create(session, f"tenant-{number}").key for number in range(4)]
    for tenant in tenants:
        sent(f"POST {CHAT}", f"Authorization: Bearer {tenant}", body=b"{", size=99_000)
    until(lambda: in_memory.total() == 4 * 99_000)
    body = {"model": "echo", "messages": [{"role": "user", "content": "wagon " * 9000}]}
    refused = http.post(CHAT, json=body, headers=other)
    assert refused.status_code == 503 and "as many bytes" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", lambda data: zlib.compress(data)[2:-4])],
    ids=["gzip", "deflate", "deflate without its header"],
)
def test_a_live_body_may_be_compressed_and_its_limit_counts_what_comes_out(
    http: httpx.Client, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    body = b'{"model": "echo", "messages": [{"role": "user", "content": "%s"}]}'
    answers = [
        http.post(CHAT, content=compress(body % (b"wagon " * words)), headers={"Content-Encoding": encoding})
        for words in (1000, 100_000)
    ]
    assert [answer.status_code for answer in answers] == [200, 413]
    assert answers[0].json()["choices"][0]["message"]["content"].count("wagon") == 1000


def test_encodings_that_are_not_read_and_bodies_that_are_broken_are_refused(http: httpx.Client) -> None:
    answer = http.post(CHAT, content=b"{}", headers={"Content-Encoding": "br"})
    assert answer.status_code == 415 and "Content-Encoding" in answer.json()["error"]["message"]
    for broken in (b"{}", gzip.compress(b"{}")[:-9]):
        answer = http.post(CHAT, content=broken, headers={"Content-Encoding": "gzip"})
        assert answer.status_code == 400 and "gzip" in answer.json()["error"]["message"]


def test_the_web_app_gets_a_compressed_body_whole(http: httpx.Client) -> None:
    body = b"wagons " * 200_000
    answer = http.post("/v1/files", content=gzip.compress(body), headers={"Content-Encoding": "gzip"})
    assert answer.json()["sha256"] == hashlib.sha256(body).hexdigest()


# One that is too many has two seconds to send its request, which 150 threads on a busy machine may not keep to.
GATEWAY = """
from webapp.gateway import connections, server
connections.REFUSAL_SECONDS = 60
server.main()
"""


def test_more_connections_than_descriptors_allow_are_told_so(
    live_context: AppContext, engines: dict[str, LiveEngine], key: str, database_url: str, tmp_path: Path
) -> None:
    """150 requests at once, and 128 open files."""
    (tmp_path / "models.toml").write_text("[models.paced]\nengine = 'echo'\n")
    environment = {"REDIS_URL": live_context.settings.redis_url, "DATABASE_URL": database_url}
    environment |= {"BATCHYARD_MODELS": str(tmp_path / "models.toml"), "BATCHYARD_ALLOW_SIMULATED": "1"}
    port = ports.Port("127.0.0.1", 0)
    port.share()
    command = ["bash", "-c", 'ulimit -n 128; exec "$@"', "bash", sys.executable, "-c", GATEWAY]
    command += [f"--port={port.number}", "--web=http://127.0.0.1:9"]
    body = b'{"model": "paced", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}'
    head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    start = threading.Barrier(150)

    def ask(_: int) -> int:
        """Return the status, or 0."""
        start.wait()
        address = ("127.0.0.1", port.number)
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=60) as connection:
            connection.sendall(request)
            return int(answered(connection)[9:12] or 0)
        return 0

    process = subprocess.Popen(command, env={**os.environ, **environment})
    try:
        while not ports.answers("127.0.0.1", port.number):
            assert process.poll() is None
            time.sleep(0.1)
        with ThreadPoolExecutor(150) as threads:
            seen = Counter(threads.map(ask, range(150)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        port.close()
    assert seen[200] >= 8 and seen[503] >= 16 and seen[200] + seen[503] + seen[0] == 150, seen
