"""A batch of requests that stand in the body is a batch of a file with these requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tasks.context import AppContext
from tests.support.stacks import a_chat
from tests.support.webapps import context_in, upload

BARE = {"custom_id": "a", "body": {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}}
WHOLE = a_chat("b", "hello")


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    """A context whose files have 1,000 bytes and 4 requests at most."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    return context_in(tmp_path, max_file_bytes=1000, max_requests=4)


def create(client: FlaskClient, requests: Any, key: str | None = None, **fields: Any) -> Any:
    body = {"requests": requests, "endpoint": "/v1/chat/completions", "completion_window": "24h"} | fields
    return client.post("/v1/batches", json=body, headers={} if key is None else {"Idempotency-Key": key})


def stored(context: AppContext) -> list[Path]:
    return [path for path in (context.settings.data / "artifacts").rglob("*") if path.is_file()]


def test_requests_in_the_body_become_an_input_file_of_whole_lines(client: FlaskClient) -> None:
    batch = create(client, [BARE, WHOLE]).get_json()
    file = client.get(f"/v1/files/{batch['input_file_id']}").get_json()
    assert (file["purpose"], file["filename"]) == ("batch", "requests.jsonl")
    assert file["expires_at"] == file["created_at"] + 30 * 86400
    lines = client.get(f"/v1/files/{file['id']}/content").data.splitlines()
    assert [json.loads(line) for line in lines] == [a_chat("a", "hello"), WHOLE]
    assert batch["batchyard"]["input_sha256"] is not None


def test_whole_requests_are_stored_as_if_they_had_been_uploaded(client: FlaskClient, context: AppContext) -> None:
    text = json.dumps(WHOLE, separators=(",", ":"))
    upload(client, text.encode() + b"\n")
    before = stored(context)
    raw = f'{{"endpoint": "/v1/chat/completions", "completion_window": "24h", "requests": [{text}]}}'
    answer = client.post("/v1/batches", data=raw, content_type="application/json")
    assert (answer.status_code, stored(context)) == (200, before)


def test_the_same_body_again_is_the_same_batch_and_other_requests_are_a_conflict(client: FlaskClient) -> None:
    first, again = (create(client, [BARE], "k").get_json()["id"] for _ in range(2))
    assert first == again
    assert len(client.get("/v1/files").get_json()["data"]) == 1
    assert create(client, [BARE, WHOLE], "k").status_code == 409
    assert create(client, [BARE], "k", completion_window="2h").status_code == 409


@pytest.mark.parametrize(
    ("requests", "fields", "status", "code", "param"),
    [
        ([BARE], {"input_file_id": "file-x"}, 400, "invalid_value", "input_file_id"),
        (None, {}, 400, "missing_required_parameter", "input_file_id"),
        ([], {}, 400, "missing_required_parameter", "input_file_id"),
        ([BARE], {"endpoint": "/v1/nope"}, 400, "invalid_value", "endpoint"),
        ([BARE], {"endpoit": "x"}, 400, "unknown_parameter", "endpoit"),
        (["text"], {}, 400, "invalid_type", None),
        ({"custom_id": "a"}, {}, 400, "invalid_type", None),
        ([BARE] * 5, {}, 413, "too_many_tasks", "requests"),
        ([a_chat("a", "x" * 1000)], {}, 413, "file_too_large", "requests"),
    ],
)
def test_a_body_that_cannot_be_is_refused_and_leaves_nothing(
    client: FlaskClient,
    context: AppContext,
    requests: Any,
    fields: dict[str, Any],
    status: int,
    code: str,
    param: str | None,
) -> None:
    answer = create(client, requests, **fields)
    error = answer.get_json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert stored(context) == []
    assert client.get("/v1/batches").get_json()["data"] == []
