"""Idempotency keys: the same request again, another one with the same key, and keys that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from tasks.context import AppContext
from tests.support.webapps import client_of, upload


@pytest.fixture
def body(client: FlaskClient) -> dict[str, Any]:
    file_id = upload(client, b"{}").get_json()["id"]
    return {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}


def create(client: FlaskClient, body: dict[str, Any], key: str | None = None) -> Any:
    return client.post("/v1/batches", json=body, headers={} if key is None else {"Idempotency-Key": key})


def test_the_same_key_and_body_make_one_batch_and_without_a_key_each_makes_another(
    client: FlaskClient, body: dict[str, Any]
) -> None:
    ids = {create(client, body, "k").get_json()["id"] for _ in range(3)}
    in_body = create(client, body | {"idempotency_key": "k"}).get_json()["id"]
    assert ids == {in_body}, "the key may stand in the header or in the body"
    assert len({create(client, body).get_json()["id"] for _ in range(2)} | ids) == 3


def test_a_batch_is_answered_though_its_input_was_deleted_since(client: FlaskClient, body: dict[str, Any]) -> None:
    first = create(client, body, "k").get_json()["id"]
    client.delete(f"/v1/files/{body['input_file_id']}")
    assert create(client, body, "k").get_json()["id"] == first


def test_a_key_that_was_used_for_something_else_is_a_conflict(client: FlaskClient, body: dict[str, Any]) -> None:
    create(client, body, "k")
    answer = create(client, body | {"completion_window": "2h"}, "k")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")


def test_projects_share_no_keys(client: FlaskClient, context: AppContext, body: dict[str, Any]) -> None:
    first = create(client, body, "k").get_json()["id"]
    other = client_of(context, project="other")
    file_id = upload(other, b"{}").get_json()["id"]
    answer = create(other, body | {"input_file_id": file_id}, "k")
    assert answer.status_code == 200 and answer.get_json()["id"] != first


@pytest.mark.parametrize(
    ("header", "in_body", "param"),
    [("k" * 256, None, "Idempotency-Key"), ("a", "b", "idempotency_key")],
)
def test_a_key_that_is_too_long_or_that_contradicts_is_refused(
    client: FlaskClient, body: dict[str, Any], header: str, in_body: str | None, param: str
) -> None:
    answer = create(client, body | ({"idempotency_key": in_body} if in_body else {}), header)
    assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, param)
