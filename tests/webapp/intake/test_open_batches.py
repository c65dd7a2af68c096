"""Open batches over HTTP: made without a file, fed by lines, closed once or twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from tasks.context import AppContext
from tests.support.messages import SentMessages
from tests.support.stacks import a_chat
from tests.support.webapps import client_of, upload
from webapp.intake import open_batches

HOW = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
LINES = "".join(json.dumps(a_chat(name, "hello")) + "\n" for name in "ab").encode()


@pytest.fixture
def batch(client: FlaskClient, sent: SentMessages) -> dict[str, Any]:
    """An open batch."""
    answer = client.post("/v1/batches", json=HOW | {"open": True, "input_file_id": None})
    assert answer.status_code == 200, answer.text
    return dict(answer.get_json())


def add(client: FlaskClient, batch: dict[str, Any], lines: bytes, key: str | None = None) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(f"/v1/batches/{batch['id']}/requests", data=lines, headers=headers, buffered=True)


def test_an_open_batch_runs_without_an_input_and_waits_for_requests(
    client: FlaskClient, batch: dict[str, Any], sent: SentMessages
) -> None:
    assert (batch["status"], batch["input_file_id"], batch["request_counts"]["total"]) == ("in_progress", "", 0)
    assert (batch["batchyard"]["open"], batch["batchyard"]["name"]) == (True, "open batch")
    assert client.get(f"/v1/batches/{batch['id']}").get_json()["batchyard"]["state"]["name"] == "open"
    assert sent.calls == [], "there is nothing to validate"


def test_requests_are_counted_and_a_worker_is_told(
    client: FlaskClient, batch: dict[str, Any], sent: SentMessages
) -> None:
    first = add(client, batch, LINES, "k").get_json()
    assert (first["object"], first["requests"], first["first_line"], first["bytes"]) == (
        "batch.requests",
        2,
        1,
        len(LINES),
    )
    assert add(client, batch, LINES, "k").get_json() == first
    shown = client.get(f"/v1/batches/{batch['id']}").get_json()
    assert shown["request_counts"]["total"] == 2
    assert shown["batchyard"]["state"]["name"] == "waiting"
    assert set(sent.ids("advance")) == {batch["id"]}


def test_a_key_with_a_cap_adds_only_to_its_own_batches(
    client: FlaskClient, context: AppContext, batch: dict[str, Any]
) -> None:
    staff = client_of(context, admin=True)
    key = staff.post("/v1/keys", json={"project": "default", "max_tokens": 10}).get_json()["key"]
    headers = {"Authorization": f"Bearer {key}"}
    answer = client.post(f"/v1/batches/{batch['id']}/requests", data=LINES, headers=headers)
    assert (answer.status_code, "This key has a cap" in answer.text) == (403, True), answer.text
    own = client.post("/v1/batches", json=HOW | {"open": True}, headers=headers).get_json()
    assert client.post(f"/v1/batches/{own['id']}/requests", data=LINES, headers=headers).status_code == 200
    assert add(staff, batch, LINES).status_code == 200


def test_closing_twice_is_fine_and_nothing_comes_after(client: FlaskClient, batch: dict[str, Any]) -> None:
    add(client, batch, LINES)
    closed = [client.post(f"/v1/batches/{batch['id']}/close").get_json() for _ in range(2)]
    assert [answer["batchyard"]["open"] for answer in closed] == [False, False]
    answer = add(client, batch, b"{}")
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (409, "batch_closed")
    assert answer.headers["x-should-retry"] == "false"
    happened = client.get(f"/v1/batches/{batch['id']}/events").get_json()["data"]
    assert [event["type"] for event in happened] == ["batch.created", "batch.closed"]


def test_a_batch_of_a_file_takes_no_requests_and_closing_it_changes_nothing(
    client: FlaskClient, sent: SentMessages
) -> None:
    file_id = upload(client, LINES).get_json()["id"]
    batch = client.post("/v1/batches", json=HOW | {"input_file_id": file_id, "open": False}).get_json()
    assert add(client, batch, LINES).status_code == 409
    assert client.post(f"/v1/batches/{batch['id']}/close").get_json()["status"] == "validating"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"open": True, "input_file_id": "file-x"}, "input_file_id"),
        ({"open": True, "requests": [a_chat("a", "hello")]}, "open"),
        ({"open": True, "on_invalid": "skip"}, "on_invalid"),
        ({"open": "yes"}, "input_file_id"),
        ({"open": "yes", "input_file_id": "file-x"}, "open"),
    ],
)
def test_a_batch_is_open_or_has_its_requests(client: FlaskClient, fields: dict[str, Any], param: str) -> None:
    answer = client.post("/v1/batches", json=HOW | fields)
    assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, param)


def test_a_body_that_is_too_large_is_to_be_sent_in_several(
    client: FlaskClient, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_batches, "MAX_BULK_BYTES", 10)
    answer = add(client, batch, LINES)
    assert answer.status_code == 413
    assert "send its lines in several requests" in answer.get_json()["error"]["message"]


def test_an_open_batch_that_is_created_again_with_its_key_is_the_same(client: FlaskClient, sent: SentMessages) -> None:
    body = HOW | {"open": True, "idempotency_key": "k"}
    assert len({client.post("/v1/batches", json=body).get_json()["id"] for _ in range(2)}) == 1


def test_another_projects_batch_is_not_there(client: FlaskClient, context: AppContext, batch: dict[str, Any]) -> None:
    stranger = client_of(context, project="other")
    assert add(stranger, batch, LINES).status_code == 404
    assert stranger.post(f"/v1/batches/{batch['id']}/close").status_code == 404
    assert client.get(f"/v1/batches/{batch['id']}").get_json()["batchyard"]["open"]


def test_the_document_says_what_a_body_of_lines_is(client: FlaskClient) -> None:
    paths = client.get("/openapi.json").get_json()["paths"]
    body = paths["/v1/batches/{batch_id}/requests"]["post"]["requestBody"]
    assert body["content"] == {"application/jsonl": {"schema": {"type": "string", "format": "binary"}}}
