"""Uploads: those that are too large or refused leave nothing behind."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import openai
import pytest
from flask.testing import FlaskClient

from batchyard.errors import ArtifactMissing
from store import artifacts, projects
from store import files as stored_files
from tasks.context import AppContext
from tests.support.planned import plan_batch
from tests.support.stacks import RunningStack
from tests.support.webapps import context_in, project_of, upload
from webapp import files


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    """A context whose files have 1,000 bytes at most."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    return context_in(tmp_path, max_file_bytes=1000)


def stored(context: AppContext) -> list[Path]:
    return [path for path in (context.settings.data / "artifacts").rglob("*") if path.is_file()]


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


def test_a_file_is_sent_while_it_is_read(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 4)
    file_id = upload(client, b"0123456789").get_json()["id"]
    assert list(client.get(f"/v1/files/{file_id}/content").iter_encoded()) == [b"0123", b"4567", b"89"]


def test_an_output_expires_with_its_batch_and_an_input_when_it_says(client: FlaskClient, context: AppContext) -> None:
    batch = plan_batch(context, project_of(context), ["one"])
    with context.database.write() as session:
        output = stored_files.create_output(session, batch, "output.jsonl", sha256="0" * 64, size=1)
        kept = stored_files.create(
            session, batch.project_id, filename="a", purpose="user_data", size=1, sha256="0" * 64, expires_after=None
        )
    listed = {file["id"]: file["expires_at"] for file in client.get("/v1/files").get_json()["data"]}
    assert listed[output.id] == output.created_at + context.settings.retention
    assert client.get(f"/v1/files/{output.id}").get_json()["expires_at"] == listed[output.id]
    assert listed[kept.id] is None
    with context.database.write() as session:
        projects.update(session, batch.project_id, zero_retention_minutes=5)
    assert client.get(f"/v1/files/{output.id}").get_json()["expires_at"] == output.created_at + 300


def test_content_that_the_store_has_damaged_is_an_error_or_breaks_off(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 4)
    monkeypatch.setattr(artifacts, "_LOCAL_READ_BYTES", 4)
    url = f"/v1/files/{upload(client, b'0123456789').get_json()['id']}/content"
    (path,) = stored(context)
    path.write_bytes(b"012345678?")
    received = []
    with pytest.raises(ArtifactMissing, match="is damaged"):
        received.extend(client.get(url).iter_encoded())
    assert received == [b"0123", b"4567"], "the last piece never comes"
    for damaged in (b"012345678", b"0123456789more", b""):
        path.write_bytes(damaged)
        answer = client.get(url)
        assert answer.status_code == 503 and "upload it again" in answer.get_json()["error"]["message"]


def test_a_client_sees_that_content_is_damaged_by_a_connection_that_ends_early(stack: RunningStack) -> None:
    content = os.urandom(3_000_000)
    file = stack.client.files.create(file=("in.bin", content), purpose="user_data")
    sha256 = hashlib.sha256(content).hexdigest()
    (stack.data / "artifacts" / sha256[:2] / sha256).write_bytes(bytes(10) + content[10:])
    with pytest.raises(openai.APIConnectionError) as caught:
        stack.client.files.content(file.id)
    assert "without sending complete message body" in str(caught.value.__cause__)
    stack.client.files.delete(file.id)
