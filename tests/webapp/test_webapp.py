"""The web app alone: its answers while other parts are down, and to uploads that are too large."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from store import batches
from store.work.lifecycle import MESSAGE_SECONDS
from tasks.context import AppContext
from tests.support.webapps import client_of, context_in, upload
from webapp import create_app, health, requests


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    """A context whose broker is down."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    return context_in(tmp_path, max_file_bytes=1000, ray_address="127.0.0.1:1")


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


def stored(context: AppContext) -> list[Path]:
    return [path for path in (context.settings.data / "artifacts").rglob("*") if path.is_file()]


def test_a_batch_is_accepted_while_the_broker_is_away_and_found_again(client: FlaskClient, context: AppContext) -> None:
    file_id = upload(client, b"{}").get_json()["id"]
    began = time.monotonic()
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    answer = client.post("/v1/batches", json=body)
    assert (answer.status_code, answer.get_json()["status"]) == (200, "validating")
    assert time.monotonic() - began < 5
    assert client.get(f"/v1/batches/{answer.get_json()['id']}").status_code == 200
    with context.database.write() as session:
        assert batches.claim_validatable(session, 60) == []
    later = time.time() + MESSAGE_SECONDS + 1
    with pytest.MonkeyPatch.context() as clock, context.database.write() as session:
        clock.setattr(time, "time", lambda: later)
        assert batches.claim_validatable(session, 60) == [answer.get_json()["id"]]


def test_a_broker_that_hangs_holds_no_request_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        client = client_of(context_in(tmp_path))
        file_id = upload(client, b"{}").get_json()["id"]
        began = time.monotonic()
        body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        assert client.post("/v1/batches", json=body).status_code == 200
        assert time.monotonic() - began < 10


def test_readiness_names_what_is_away(client: FlaskClient) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 503
    parts = answer.get_json()["parts"]
    assert {name for name, state in parts.items() if state == "ok"} == {"database", "artifacts"}
    assert "refused" in parts["ray"]


def test_readiness_is_worked_out_once_for_many_calls(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def slow(_context: AppContext) -> None:
        calls.append(time.monotonic())
        time.sleep(0.2)

    monkeypatch.setattr(health, "CHECKS", {"slow": slow})
    app = client.application
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: app.test_client().get("/readyz"), range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(calls) == 1
    monkeypatch.setattr(health, "READY_SECONDS", 0.0)
    client.get("/readyz")
    assert len(calls) == 2


def test_who_asks_for_readiness_waits_for_no_check_that_hangs(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one waits; the others get what was last known."""
    begun, end = threading.Event(), threading.Event()

    def hang(_context: AppContext) -> None:
        begun.set()
        end.wait(30)

    monkeypatch.setattr(health, "CHECKS", {"part": lambda _context: None})
    monkeypatch.setattr(health, "READY_SECONDS", 0.0)
    assert client.get("/readyz").status_code == 200
    monkeypatch.setattr(health, "CHECKS", {"part": hang})
    first = threading.Thread(target=client.application.test_client().get, args=("/readyz",))
    first.start()
    begun.wait(30)
    began = time.monotonic()
    assert client.get("/readyz").status_code == 200
    assert time.monotonic() - began < 5
    end.set()
    first.join()


def test_an_upload_that_is_too_large_is_refused_and_leaves_nothing(client: FlaskClient, context: AppContext) -> None:
    assert upload(client, b"x" * 1000).status_code == 200
    before = stored(context)
    answer = upload(client, b"x" * 1001)
    assert answer.status_code == 413
    assert answer.get_json()["error"]["code"] == "file_too_large"
    assert "BATCHYARD_MAX_FILE_BYTES" in answer.get_json()["error"]["message"]
    assert stored(context) == before


def test_an_upload_of_unknown_length_is_refused_as_soon_as_it_is_too_large(
    client: FlaskClient, context: AppContext
) -> None:
    read = 0

    class Endless(io.RawIOBase):
        """A file part that never ends."""

        def readinto(self, buffer: Any) -> int:
            nonlocal read
            head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' if read == 0 else b""
            content = (head + b"a" * len(buffer))[: len(buffer)]
            buffer[: len(content)] = content
            read += len(content)
            return len(content)

        def seek(self, offset: int, whence: int = 0) -> int:
            return offset  # the test client rewinds its input

    answer = client.post(
        "/v1/files",
        input_stream=Endless(),
        content_type="multipart/form-data; boundary=x",
        environ_overrides={"wsgi.input_terminated": True},
    )
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (413, "file_too_large")
    assert read < 1_000_000
    assert stored(context) == []


def test_prompts_sent_as_json_are_bounded_and_a_file_is_the_remedy(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_BULK_BYTES", 500)
    prompts = {"model": "echo", "prompts": ["x" * 600]}
    for answer in (
        client.post("/start", json=prompts),
        client.post(
            "/start",
            input_stream=io.BytesIO(json.dumps(prompts).encode()),  # of unknown length
            content_type="application/json",
            environ_overrides={"wsgi.input_terminated": True},
        ),
    ):
        assert answer.status_code == 413
        assert "send its prompts as a file" in answer.get_json()["error"]["message"]
    assert stored(context) == []


def test_a_refused_upload_leaves_nothing(client: FlaskClient, context: AppContext) -> None:
    assert upload(client, b"x", purpose="nonsense").status_code == 400
    assert stored(context) == []


def test_two_uploads_of_the_same_content_are_two_files_and_one_artifact(
    client: FlaskClient, context: AppContext
) -> None:
    first, second = (upload(client, b"same").get_json() for _ in range(2))
    assert first["id"] != second["id"]
    assert len(stored(context)) == 1


def test_a_file_with_an_expiry_says_when(client: FlaskClient) -> None:
    form = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = upload(client, b"x", **form).get_json()
    assert file["expires_at"] == file["created_at"] + 3600
    wrong = upload(client, b"x", **{**form, "expires_after[seconds]": "5"})
    assert wrong.get_json()["error"]["param"] == "expires_after.seconds"


def test_a_full_artifact_store_is_told_of_and_nothing_is_recorded(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    answer = upload(client, b"x")
    assert answer.status_code == 503
    assert "is full; free some space" in answer.get_json()["error"]["message"]
    assert client.get("/v1/files").get_json()["data"] == []


def test_every_answer_has_a_request_id(client: FlaskClient) -> None:
    ids = {client.get(path).headers["x-request-id"] for path in ("/healthz", "/v1/models", "/nope")}
    assert len(ids) == 3


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
def test_a_request_for_one_answer_is_told_that_this_server_takes_batches(client: FlaskClient, path: str) -> None:
    answer = client.post(path, json={"model": "echo"})
    error = answer.get_json()["error"]
    assert (answer.status_code, error["code"]) == (404, "batches_only")
    assert f"'{path}'" in error["message"]
    assert "POST /v1/batches" in error["message"]


def test_a_request_for_a_response_is_not_told_of_a_url_that_a_batch_refuses(client: FlaskClient) -> None:
    answer = client.post("/v1/responses", json={"model": "echo"})
    error = answer.get_json()["error"]
    assert (answer.status_code, error["code"]) == (404, "batches_only")
    assert "no batches of /v1/responses" in error["message"]
    assert "the urls /v1/chat/completions, /v1/completions, /v1/embeddings," in error["message"]


@pytest.mark.parametrize(
    "path", ["/v1/uploads", "/v1/messages", "/v1/rerank", "/v1/files/x/y/z", "/nope", "/v1/files/"]
)
def test_an_unknown_route_is_answered_with_what_is_served(client: FlaskClient, path: str) -> None:
    answer = client.post(path, json={})
    error = answer.get_json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (404, "invalid_request_error", "unknown_url")
    assert error["message"].startswith(f"Unknown request URL: POST {path}. This server has: /v1/")
    assert "/v1/files, /v1/jobs," in error["message"] and "/start" in error["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/chat/completions"),
        ("POST", "/responses"),
        ("POST", "/files"),
        ("POST", "/batches"),
        ("POST", "/batches/batch_1/cancel"),
        ("GET", "/models"),
        ("GET", "/files"),
        ("GET", "/files/file-1/content"),
        ("GET", "/batches/batch_1"),
    ],
)
def test_a_client_whose_base_url_lacks_v1_is_told_so(context: AppContext, method: str, path: str) -> None:
    """As OpenAI's SDK sends it: with a key, and no wish for a page."""
    client = create_app(context).test_client()
    headers = {"Authorization": "Bearer sk-x", "Accept": "application/json"}
    answer = client.open(path, method=method, headers=headers)
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (404, "unknown_url")
    message = f"Unknown request URL: {method} {path}. base_url must end in /v1: http://localhost/v1"
    assert answer.get_json()["error"]["message"] == message
    browser = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    assert client.open(path, method=method, headers=browser).mimetype == "text/html"


def test_a_method_that_a_route_does_not_have_is_answered_with_those_it_has(client: FlaskClient) -> None:
    answer = client.put("/v1/files")
    assert (answer.status_code, set(answer.headers["Allow"].split(", "))) == (405, {"GET", "HEAD", "OPTIONS", "POST"})
    assert answer.get_json()["error"]["message"] == "Not allowed to PUT on /v1/files; allowed: GET, POST."


def test_no_answer_has_the_frameworks_words(client: FlaskClient) -> None:
    browser = {"Accept": "text/html"}
    answers = [client.get("/nope", headers=browser), client.get("/nope"), client.delete("/v1/batches")]
    for answer in answers:
        assert "spelling" not in answer.text and "requested URL" not in answer.text


def test_batches_are_listed_by_status_and_another_word_is_refused(client: FlaskClient) -> None:
    file_id = upload(client, b"{}").get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    first, second = (client.post("/v1/batches", json=body).get_json()["id"] for _ in range(2))
    assert client.post(f"/v1/batches/{first}/cancel").status_code == 200

    def listed(query: str) -> list[str]:
        return [batch["id"] for batch in client.get(f"/v1/batches?{query}").get_json()["data"]]

    assert listed("status=validating") == [second]
    assert listed("status=cancelling") == [first]
    assert listed(f"status=cancelling&after={second}") == [first]
    assert listed("status=completed") == []
    refused = client.get("/v1/batches?status=running")
    assert (refused.status_code, refused.get_json()["error"]["param"]) == (400, "status")
