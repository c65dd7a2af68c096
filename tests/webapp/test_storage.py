"""What a project stores is limited at every door that takes files, and what its batches write is never refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from store import files
from store.records import File
from tasks.context import AppContext
from tests.support.messages import SentMessages
from tests.support.planned import plan_batch
from tests.support.stacks import a_chat
from tests.support.webapps import client_of, context_in, project_of, upload

LIMIT = 4000
MESSAGE = {"model": "echo", "max_tokens": 5, "messages": [{"role": "user", "content": "hello there, how are you?"}]}
LINE = json.dumps(a_chat("a", "hello")).encode() + b"\n"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: SentMessages) -> AppContext:
    """A context whose projects store 4,000 bytes at most."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    return context_in(tmp_path, max_stored_bytes=LIMIT)


def stored(context: AppContext) -> list[Path]:
    return [path for path in (context.settings.data / "artifacts").rglob("*") if path.is_file()]


def refusal(answer: Any) -> str:
    """Return the message of the refusal of more bytes than the project may store."""
    error = answer.get_json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error.get("code", "storage_limit_exceeded") == "storage_limit_exceeded"
    return str(error["message"])


def batch_input(context: AppContext) -> int:
    """Return the bytes of all inputs of batches."""
    with context.database.read() as session:
        return sum(file.bytes for file in session.query(File).filter_by(purpose="batch"))


def _part(client: FlaskClient) -> Any:
    created = client.post("/v1/uploads", json={"bytes": 60, "filename": "a", "purpose": "batch", "mime_type": "a/b"})
    if created.status_code != 200:
        return created
    data = {"data": (io.BytesIO(b"x" * 60), "part")}
    return client.post(f"/v1/uploads/{created.get_json()['id']}/parts", data=data, content_type="multipart/form-data")


def _start_with(name: str, **form: str) -> Callable[[FlaskClient], Any]:
    def send(client: FlaskClient) -> Any:
        data = {**form, "file": (io.BytesIO(LINE), name)}
        return client.post("/start", data=data, content_type="multipart/form-data")

    return send


DOORS: dict[str, Callable[[FlaskClient], Any]] = {
    "a file": lambda client: upload(client, b"x" * 60),
    "an upload in parts": _part,
    "a batch of inline requests": lambda client: client.post(
        "/v1/batches",
        json={"endpoint": "/v1/chat/completions", "completion_window": "24h", "requests": [a_chat("a", "hello")]},
    ),
    "a message batch": lambda client: client.post(
        "/v1/messages/batches", json={"requests": [{"custom_id": "a", "params": MESSAGE}]}
    ),
    "prompts of POST /start": lambda client: client.post("/start", json={"prompts": ["hello"], "model": "echo"}),
    "a file of POST /start": _start_with("in.jsonl"),
    "a job of POST /start": _start_with("in.txt", recipe="batch", options=json.dumps({"model": "echo"})),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_project_stores_no_more_than_its_limit_through_any_door(
    client: FlaskClient, context: AppContext, door: str
) -> None:
    assert upload(client, b"x" * (LIMIT - 50)).status_code == 200
    message = refusal(DOORS[door](client))
    assert f"{LIMIT - 50} bytes" in message and f"{LIMIT} bytes" in message
    assert "delete files" in message and "administrator" in message
    page = client.get("/v1/files").get_json()["data"]
    assert [file["bytes"] for file in page] == [LIMIT - 50]
    assert client.delete(f"/v1/files/{page[0]['id']}").status_code == 200
    assert DOORS[door](client).status_code in (200, 202)


def test_lines_for_an_open_batch_count_too(client: FlaskClient) -> None:
    how = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "open": True}
    batch = client.post("/v1/batches", json=how).get_json()["id"]
    assert upload(client, b"x" * (LIMIT - len(LINE))).status_code == 200
    assert client.post(f"/v1/batches/{batch}/requests", data=LINE).status_code == 200
    refusal(client.post(f"/v1/batches/{batch}/requests", data=LINE.replace(b'"a"', b'"b"')))
    refusal(upload(client, b"x"))


def test_an_upload_is_refused_before_it_is_read_if_its_length_says_so_and_else_while_it_is(
    client: FlaskClient, context: AppContext
) -> None:
    read = 0

    class Body(io.RawIOBase):
        """A form with a file of 10 MB."""

        def __init__(self) -> None:
            self._left = io.BytesIO(
                b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"a" * 10**7
            )

        def readinto(self, buffer: Any) -> int:
            nonlocal read
            size = self._left.readinto(buffer)
            read += size
            return size

        def seek(self, offset: int, whence: int = 0) -> int:
            return offset  # the test client rewinds its input

    for length in ({"CONTENT_LENGTH": str(10**7)}, {"wsgi.input_terminated": True}):
        read = 0
        answer = client.post(
            "/v1/files",
            input_stream=Body(),
            content_type="multipart/form-data; boundary=x",
            environ_overrides=length,
        )
        refusal(answer)
        assert read < 1_000_000
    assert stored(context) == []


def test_what_a_batch_writes_counts_and_is_never_refused(client: FlaskClient, context: AppContext) -> None:
    batch = plan_batch(context, project_of(context), ["one"])
    with context.database.write() as session:
        files.create_output(session, batch, "output.jsonl", sha256="0" * 64, size=10 * LIMIT)
    assert f"{10 * LIMIT + batch_input(context)} bytes" in refusal(upload(client, b"x"))


def test_a_stored_file_makes_further_batches_where_nothing_more_can_be_stored(client: FlaskClient) -> None:
    file = upload(client, LINE.ljust(LIMIT)).get_json()["id"]
    how = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": file}
    assert client.post("/v1/batches", json=how).status_code == 200


def test_the_parts_of_an_upload_become_its_file_at_the_limit(client: FlaskClient) -> None:
    body = {"bytes": LIMIT, "filename": "a", "purpose": "batch", "mime_type": "a/b"}
    path = f"/v1/uploads/{client.post('/v1/uploads', json=body).get_json()['id']}"
    data = {"data": (io.BytesIO(b"x" * LIMIT), "part")}
    part = client.post(f"{path}/parts", data=data, content_type="multipart/form-data").get_json()["id"]
    refusal(upload(client, b"x"))
    assert client.post(f"{path}/complete", json={"part_ids": [part]}).get_json()["file"]["bytes"] == LIMIT


def test_an_administrator_gives_a_project_a_limit_of_its_own(client: FlaskClient, context: AppContext) -> None:
    admin, url = client_of(context, admin=True, project="operators"), f"/v1/projects/{project_of(context)}"
    assert admin.post(url, json={"max_stored_bytes": 10}).get_json()["max_stored_bytes"] == 10
    assert "10 bytes" in refusal(upload(client, b"x" * 11))
    assert upload(admin, b"x" * 11).status_code == 200, "another project's limit is its own"
    assert admin.post(url, json={"max_stored_bytes": -1}).status_code == 400
    assert admin.post(url, json={"max_stored_bytes": None}).get_json()["max_stored_bytes"] is None
    assert upload(client, b"x" * 11).status_code == 200


def test_the_sum_of_a_projects_files_reads_an_index_only(context: AppContext, client: FlaskClient) -> None:
    with context.database.write() as session:
        statement = files.sum_of_files(project_of(context)).compile(
            session.get_bind(), compile_kwargs={"literal_binds": True}
        )
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}").all()
    assert "COVERING INDEX ix_files_project_id_expires_at_bytes" in str(plan)
