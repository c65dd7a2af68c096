"""All but live requests go to the web app, and come back as it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import httpx
import pytest
from aiohttp import web

from tasks.context import AppContext
from tests.support.gateways import LoopThread, RunningGateway

UPLOAD = 40 * 2**20


async def _describe(request: web.Request) -> web.Response:
    """Answer with what was received: headers, and the hash of the body."""
    digest = hashlib.sha256()
    async for piece in request.content.iter_any():
        digest.update(piece)
    headers = {name: request.headers.getall(name) for name in request.headers}
    body = {"method": request.method, "path": request.raw_path, "headers": headers, "sha256": digest.hexdigest()}
    return web.json_response(body, status=int(request.query.get("status", 200)), headers={"Set-Cookie": "a=1"})


async def _large(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(40):
        await response.write(bytes(2**20))
    return response


async def _breaks(request: web.Request) -> web.StreamResponse:
    """End the connection in the middle of the body."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"half")
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One database: the web app behind the gateway has it, and not the gateway."""
    return sqlite_url


@pytest.fixture
def web_url(thread: LoopThread) -> Iterator[str]:
    """A server that stands where the web app does."""
    app = web.Application(client_max_size=0)
    app.router.add_get("/large", _large)
    app.router.add_get("/breaks", _breaks)
    app.router.add_route("*", r"/{path:[\s\S]*}", _describe)
    runner = web.AppRunner(app)
    thread.run(runner.setup())
    thread.run(web.TCPSite(runner, "127.0.0.1", 0).start())
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    thread.run(runner.cleanup())


@pytest.fixture
def client(live_context: AppContext, thread: LoopThread, web_url: str, key: str) -> Iterator[httpx.Client]:
    gateway = RunningGateway(thread, live_context, web_url)
    with httpx.Client(base_url=gateway.url, headers={"x-api-key": key}, timeout=60) as client:
        yield client
    gateway.stop()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
def test_methods_paths_and_status_codes_pass_through_as_they_are(client: httpx.Client, method: str) -> None:
    path = "/v1/files/a%2Fb%0Ac?status=404&name=%C3%A4"
    answer = client.request(method, path, content=b"x" if method != "GET" else None)
    assert answer.status_code == 404
    assert (answer.json()["method"], answer.json()["path"]) == (method, path)
    assert answer.headers["set-cookie"] == "a=1"


def test_a_live_path_with_another_method_is_the_web_apps(client: httpx.Client) -> None:
    assert client.get("/v1/chat/completions").json()["method"] == "GET"


def test_the_web_app_hears_who_the_client_is_and_no_header_of_the_connection(client: httpx.Client) -> None:
    sent = {"X-Forwarded-For": "6.6.6.6", "Connection": "x-mine", "X-Mine": "1"}
    headers = client.get("/x", headers=sent).json()["headers"]
    assert headers["X-Forwarded-For"] == ["6.6.6.6, 127.0.0.1"], "a proxy of ours counts from the end"
    assert headers["X-Forwarded-Proto"] == ["http"]
    assert "X-Mine" not in headers and "127.0.0.1" in headers["Host"][0]


def test_a_large_upload_is_passed_on_as_it_comes(client: httpx.Client) -> None:
    content = bytes(UPLOAD)
    answer = client.post("/v1/files", content=iter([content[at : at + 2**20] for at in range(0, UPLOAD, 2**20)]))
    assert answer.json()["sha256"] == hashlib.sha256(content).hexdigest()
    assert "chunked" in str(answer.json()["headers"].get("Transfer-Encoding"))


def test_a_large_download_comes_whole(client: httpx.Client) -> None:
    with client.stream("GET", "/large") as answer:
        assert sum(map(len, answer.iter_bytes())) == UPLOAD


def test_a_download_that_breaks_off_is_not_whole_for_the_client_either(client: httpx.Client) -> None:
    with pytest.raises(httpx.HTTPError):
        client.get("/breaks")


def test_a_web_app_that_is_away_is_said_to_be(live_context: AppContext, thread: LoopThread) -> None:
    gateway = RunningGateway(thread, live_context, "http://127.0.0.1:9")
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        answer = client.get("/v1/batches")
        assert answer.status_code == 503 and "web app" in answer.json()["error"]["message"]
        answer = client.get("/v1/messages/batches")
        assert (answer.status_code, answer.json()["type"]) == (503, "error")
    gateway.stop()
