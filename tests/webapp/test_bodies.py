"""Bodies at the web app: read once it is known who sends them, decompressed, and not waited for without end."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.serving import make_server

from batchyard.local import ports
from tasks.context import AppContext
from tests.support.webapps import client_of, context_in
from webapp import create_app

SECONDS = 45.0
SIGN_IN = "/sign-in"


@pytest.fixture
def served(context: AppContext) -> Iterator[tuple[Flask, int]]:
    """The web app alone, and its port."""
    app = create_app(context)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield app, server.server_port
    server.shutdown()
    thread.join()
    server.socket.close()  # the threads of those that wait, if any do, are the process's to end


def half_sent(port: int, method: str, path: str, content_type: str) -> str:
    """Send a request of whose body most is missing, and return the first line of the answer; `silence` without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: here\r\nContent-Type: {content_type}\r\nContent-Length: 100000\r\n\r\n"
        )
        connection.sendall(head.encode() + b"key=x")
        try:
            return connection.recv(64).partition(b"\r\n")[0].decode()
        except TimeoutError:
            return "silence"


def test_no_route_waits_for_a_body_before_it_knows_who_sends_it(served: tuple[Flask, int]) -> None:
    app, port = served
    answers = {}
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:int:|path:)?\w+>", "1", rule.rule)
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            for kind in ("multipart/form-data; boundary=X", "application/json")[: 1 if method == "GET" else 2]:
                if (method, path) != ("POST", "/sign-in"):  # whose form says who somebody is
                    answers[method, path, kind] = half_sent(port, method, path, kind)
    assert len(answers) > 200
    assert [place for place, answer in answers.items() if answer == "silence"] == []
    expected = {"303", "401", "403", "404", "405"}
    open_to_all = [place for place, answer in answers.items() if answer.split()[1] not in expected]
    assert {method for method, _, _ in open_to_all} == {"GET"}, open_to_all


FILE = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "echo"}})
FORM = (
    b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--XX\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n%s\r\n--XX--\r\n'
)
BATCH = {
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
    "requests": [{"custom_id": f"r{i}", "body": {"model": "echo", "messages": []}} for i in range(200)],
}


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies_are_read_as_what_they_hold(
    client: FlaskClient, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    headers = {"Content-Encoding": encoding}
    content = "\n".join([FILE] * 300).encode()
    answer = client.post(
        "/v1/files", data=compress(FORM % content), headers=headers, content_type="multipart/form-data; boundary=XX"
    )
    assert answer.get_json()["bytes"] == len(content), answer.get_json()
    assert client.get(f"/v1/files/{answer.get_json()['id']}/content").data == content
    body = json.dumps(BATCH).encode()
    answer = client.post("/v1/batches", data=compress(body), headers=headers, content_type="application/json")
    assert answer.status_code == 200, answer.get_json()
    key = client.environ_base["HTTP_AUTHORIZATION"].split()[1]
    form = {"data": compress(f"key={key}".encode()), "content_type": "application/x-www-form-urlencoded"}
    assert client.post(SIGN_IN, headers=headers, **form).status_code == 303  # type: ignore[arg-type]


def test_limits_count_what_comes_out(tmp_path: Path) -> None:
    client = client_of(context_in(tmp_path, max_file_bytes=10_000))
    headers = {"Content-Encoding": "gzip"}
    small = gzip.compress(FORM % bytes(10_001))
    assert len(small) < 1000
    answer = client.post("/v1/files", data=small, headers=headers, content_type="multipart/form-data; boundary=XX")
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (413, "file_too_large")
    bomb = gzip.compress(b'{"file_id": "' + bytes(50 * 2**20))
    answer = client.post("/v1/webhook_endpoints", data=bomb, headers=headers, content_type="application/json")
    assert answer.status_code == 413


@pytest.mark.parametrize(("encoding", "status"), [("br", 415), ("gzip, gzip", 415), ("identity", 400), ("gzip", 400)])
def test_other_encodings_are_named_and_broken_bodies_are_said_to_be(
    client: FlaskClient, encoding: str, status: int
) -> None:
    answer = client.post(
        "/v1/webhook_endpoints",
        data=io.BytesIO(b"{}"),
        headers={"Content-Encoding": encoding},
        content_type="application/json",
    )
    assert answer.status_code == status
    message = answer.get_json()["error"]["message"]
    assert ("Content-Encoding" in message) == (status == 415) and ("gzip" in message) == (encoding != "identity")


def healthy(port: int) -> float:
    """Return after how many seconds /healthz has answered."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        assert connection.recv(20).startswith(b"HTTP/1.1 200")
    return time.monotonic() - began


@pytest.mark.stack
def test_silent_and_half_sent_requests_do_not_stop_the_server(tmp_path: Path) -> None:
    """Without the gateway, under gunicorn: 40 sockets of each kind, and none with a key."""
    (tmp_path / "models.toml").write_text("[models.echo]\nengine = 'echo'\n")
    environment = {"BATCHYARD_DATA": str(tmp_path), "BATCHYARD_MODELS": str(tmp_path / "models.toml")}
    environment |= {"BATCHYARD_ALLOW_SIMULATED": "1", "DATABASE_URL": f"sqlite:///{tmp_path}/new.db"}
    environment |= {"BATCHYARD_TRANSFER_PAUSE_SECONDS": "1"}
    held = ports.Port("127.0.0.1", 0)
    held.share()
    port = held.number
    command = [sys.executable, "-m", "batchyard.local.services", "web", f"--port={port}"]
    with subprocess.Popen(command, env={**os.environ, **environment}) as web:
        try:
            deadline = time.monotonic() + 180
            while not ports.answers("127.0.0.1", port):
                assert web.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            assert healthy(port) < 60, "it has begun to answer"
            length = b"Host: h\r\nContent-Length: 100000\r\n"
            form = b"Content-Type: application/x-www-form-urlencoded\r\n\r\nkey=x"
            for begun in (
                b"",
                b"GET /healthz HTTP/1.1\r\nHost",
                b"POST /v1/jobs/job_x/items/1 HTTP/1.1\r\n" + length + form,
                b"POST /sign-in HTTP/1.1\r\n" + length + form,
            ):
                connections = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(40)]
                for connection in connections:
                    connection.sendall(begun)
                time.sleep(0.5)
                assert healthy(port) < SECONDS, begun
                for connection in connections:
                    connection.close()
        finally:
            web.terminate()
            web.wait(60)
            held.close()


def test_a_value_that_is_nested_as_deeply_as_json_may_be_is_refused_everywhere(context: AppContext) -> None:
    client = client_of(context, admin=True)
    document = client.get("/openapi.json").get_json()
    schemas, asked = document["components"]["schemas"], {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            schema = schemas.get(content.get("schema", {}).get("$ref", "").rpartition("/")[2], {})
            for name in schema.get("properties", ()):
                body = f'{{"{name}": {"[" * 1010}{"]" * 1010}}}'
                place = re.sub(r"{\w+}", "1", path)
                answer = client.open(place, method=method.upper(), data=body, content_type="application/json")
                asked[method, path, name] = answer.status_code
    assert {("post", "/v1/keys", "project"), ("post", "/v1/webhook_endpoints", "url")} <= asked.keys()
    assert {place: status for place, status in asked.items() if status >= 500} == {}
