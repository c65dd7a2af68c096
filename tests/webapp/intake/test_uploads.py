"""Uploads in parts: bounded while they stream, joined in order, and refused before they cost anything."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from store.intake import uploads as records
from tasks.context import AppContext
from tests.support.webapps import client_of, context_in
from webapp.intake import uploads


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    """A context whose files have 1,000 bytes at most, in parts of 500."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(uploads, "MAX_PART_BYTES", 500)
    return context_in(tmp_path, max_file_bytes=1000)


def stored(context: AppContext) -> list[Path]:
    return [path for path in (context.settings.data / "artifacts").rglob("*") if path.is_file()]


def create(client: FlaskClient, size: int, **fields: Any) -> Any:
    body = {"bytes": size, "filename": "in.jsonl", "purpose": "batch", "mime_type": "application/jsonl"} | fields
    return client.post("/v1/uploads", json=body)


def add(client: FlaskClient, path: str, content: bytes, field: str = "data") -> Any:
    return client.post(f"{path}/parts", data={field: (io.BytesIO(content), "part")}, content_type="multipart/form-data")


def begin(client: FlaskClient, *parts: bytes) -> tuple[str, list[str]]:
    """Create an upload with these parts. Return its path and their ids."""
    path = f"/v1/uploads/{create(client, sum(map(len, parts))).get_json()['id']}"
    return path, [add(client, path, part).get_json()["id"] for part in parts]


def refused(answer: Any) -> tuple[int, str | None, str | None]:
    error = answer.get_json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_parts_become_a_file_in_the_order_in_which_they_are_named(client: FlaskClient) -> None:
    path, ids = begin(client, b"one", b"two", b"three")
    done = client.post(f"{path}/complete", json={"part_ids": [ids[1], ids[2], ids[0]]}).get_json()
    assert (done["status"], done["file"]["bytes"], done["file"]["filename"]) == ("completed", 11, "in.jsonl")
    content = b"twothreeone"
    assert client.get(f"/v1/files/{done['file']['id']}/content").data == content


def test_completing_again_answers_with_the_same_file(client: FlaskClient) -> None:
    path, ids = begin(client, b"one", b"two")
    first, second = (client.post(f"{path}/complete", json={"part_ids": ids}).get_json() for _ in range(2))
    assert first == second
    assert len(client.get("/v1/files").get_json()["data"]) == 1
    other = client.post(f"{path}/complete", json={"part_ids": ids[::-1]})
    assert other.status_code == 409 and other.headers["x-should-retry"] == "false"


def test_another_md5_makes_no_file_and_the_right_one_still_does(client: FlaskClient, context: AppContext) -> None:
    path, ids = begin(client, b"one", b"two")
    md5 = hashlib.md5(b"onetwo").hexdigest()
    before = stored(context)
    wrong = client.post(f"{path}/complete", json={"part_ids": ids[::-1], "md5": md5})
    assert refused(wrong) == (400, "invalid_value", "md5")
    assert "The upload is still pending" in wrong.get_json()["error"]["message"]
    assert stored(context) == before
    right = client.post(f"{path}/complete", json={"part_ids": ids, "md5": md5.upper()})
    assert right.get_json()["file"]["bytes"] == 6


def test_an_empty_file_needs_no_part(client: FlaskClient) -> None:
    path, _ = begin(client)
    file = client.post(f"{path}/complete", json={"part_ids": []}).get_json()["file"]
    assert (file["bytes"], client.get(f"/v1/files/{file['id']}/content").data) == (0, b"")


def test_a_file_that_would_be_too_large_is_refused_before_it_is_sent(client: FlaskClient) -> None:
    answer = create(client, 1001)
    assert refused(answer) == (413, "file_too_large", "bytes")
    assert "BATCHYARD_MAX_FILE_BYTES" in answer.get_json()["error"]["message"]


def test_a_part_that_is_too_large_is_refused_and_leaves_nothing(client: FlaskClient, context: AppContext) -> None:
    path, _ = begin(client)
    answer = add(client, path, b"x" * 501)
    assert refused(answer) == (413, "file_too_large", "data")
    assert "The part is larger than 500 bytes; send it as several parts" in answer.get_json()["error"]["message"]
    assert stored(context) == []


def test_a_part_of_an_upload_that_takes_none_is_not_read(client: FlaskClient, context: AppContext) -> None:
    path, _ = begin(client)
    assert client.post(f"{path}/cancel").get_json()["status"] == "cancelled"
    assert add(client, path, b"late").status_code == 409
    assert add(client, "/v1/uploads/upload_none", b"x").status_code == 404
    assert stored(context) == []


def test_a_part_stands_in_the_field_data(client: FlaskClient, context: AppContext) -> None:
    path, _ = begin(client)
    assert refused(add(client, path, b"x", field="file")) == (400, "missing_required_parameter", "data")
    twice = {"data": [(io.BytesIO(b"x"), "a"), (io.BytesIO(b"y"), "b")]}
    answer = client.post(f"{path}/parts", data=twice, content_type="multipart/form-data")
    assert refused(answer) == (400, "invalid_value", "data")
    assert stored(context) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bytes": -1}, "bytes"),
        ({"bytes": "5"}, "bytes"),
        ({"purpose": "batch_output"}, "purpose"),
        ({"filename": ""}, "filename"),
        ({"expires_after": {"anchor": "created_at", "seconds": 5}}, "expires_after.seconds"),
        ({"md5": "x"}, "md5"),
    ],
)
def test_an_upload_that_cannot_be_is_refused_with_its_place(
    client: FlaskClient, fields: dict[str, Any], param: str
) -> None:
    answer = create(client, 5, **fields)
    assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, param)


def test_an_upload_says_until_when_it_takes_parts_and_its_file_how_long_it_lasts(client: FlaskClient) -> None:
    upload = create(client, 0, filename="../a\x07.jsonl", expires_after={"anchor": "created_at", "seconds": 7200})
    body = upload.get_json()
    assert body["expires_at"] == body["created_at"] + records.EXPIRES_AFTER
    assert (body["status"], body["filename"], body["file"]) == ("pending", "a.jsonl", None)
    file = client.post(f"/v1/uploads/{body['id']}/complete", json={"part_ids": []}).get_json()["file"]
    assert file["expires_at"] == file["created_at"] + 7200


def test_another_projects_upload_is_not_there(client: FlaskClient, context: AppContext) -> None:
    path, ids = begin(client, b"mine")
    stranger = client_of(context, project="other")
    assert add(stranger, path, b"x").status_code == 404
    assert stranger.post(f"{path}/complete", json={"part_ids": ids}).status_code == 404
    assert stranger.post(f"{path}/cancel").status_code == 404
    assert client.post(f"{path}/complete", json={"part_ids": ids}).status_code == 200
