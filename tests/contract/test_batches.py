"""/v1/batches, as contract.md promises it: objects, creating, listing, idempotency."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.contract.conftest import refusal
from tests.support.stacks import RunningStack, a_chat

Body = dict[str, Any]


@pytest.fixture
def body(created: Body) -> Iterator[Body]:
    yield dict(created)


def test_a_create_answers_200_at_once_with_every_key(http: httpx.Client, body: Body) -> None:
    answer = http.post("/v1/batches", json=body | {"metadata": {"team": "a"}})
    batch = answer.json()
    assert (answer.status_code, batch["status"], batch["object"]) == (200, "validating", "batch")
    assert batch["expires_at"] == batch["created_at"] + 24 * 3600
    assert batch["metadata"] == {"team": "a"}
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    unknown = ("output_file_id", "error_file_id", "errors", "model", "in_progress_at", "completed_at", "cancelled_at")
    assert all(name in batch and batch[name] is None for name in unknown)


def test_a_completed_batch_has_its_times_in_order_and_its_usage(mixed: Any) -> None:
    times = [mixed.created_at, mixed.in_progress_at, mixed.finalizing_at, mixed.completed_at]
    assert times == sorted(times)
    assert (mixed.failed_at, mixed.expired_at, mixed.cancelling_at, mixed.cancelled_at) == (None,) * 4
    assert mixed.usage.total_tokens == mixed.usage.input_tokens + mixed.usage.output_tokens > 0
    assert (mixed.model, mixed.metadata) == (None, {"team": "a"})


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"input_file_id": None}, "invalid_type", "input_file_id"),
        ({"input_file_id": "f" * 65}, "invalid_value", "input_file_id"),
        ({"endpoint": "/v1/nope"}, "invalid_value", "endpoint"),
        ({"endpoint": "/v1/moderations"}, "invalid_value", "endpoint"),
        ({"endpoint": ["/v1/completions"]}, "invalid_type", "endpoint"),
        ({"endpoint": {"url": "/v1/completions"}}, "invalid_type", "endpoint"),
        ({"endpoint": 5}, "invalid_type", "endpoint"),
        ({"endpoint": None}, "invalid_type", "endpoint"),
        ({"on_invalid": ["skip"]}, "invalid_type", "on_invalid"),
        ({"priority": 1}, "invalid_type", "priority"),
        ({"output_expires_after": {"anchor": 5, "seconds": 3600}}, "invalid_type", "output_expires_after.anchor"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600.5}}, "invalid_type", None),
        ({"completion_window": "5 parsecs"}, "invalid_value", "completion_window"),
        ({"completion_window": "400d"}, "invalid_value", "completion_window"),
        ({"completion_window": 24}, "invalid_type", "completion_window"),
        ({"metadata": {"tags": ["a"]}}, "invalid_type", "metadata.tags"),
        ({"metadata": {"n": 5}}, "invalid_type", "metadata.n"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "invalid_value", "metadata"),
        ({"metadata": {"a": "x" * 513}}, "invalid_value", "metadata.a"),
        ({"metadata": {"k" * 65: "x"}}, "invalid_value", None),
        ({"post_process": [{"step": "nope"}]}, "invalid_value", "post_process.0"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "invalid_value", None),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 2592001}}, "invalid_value", None),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "invalid_value", "output_expires_after.anchor"),
        ({"completion_windw": "24h"}, "unknown_parameter", "completion_windw"),
    ],
)
def test_a_body_that_cannot_be_a_batch_is_refused_with_its_place(
    http: httpx.Client, body: Body, change: Body, code: str, param: str | None
) -> None:
    answer = http.post("/v1/batches", json=body | change)
    error = refusal(answer)
    assert (answer.status_code, error["code"], error["type"]) == (400, code, "invalid_request_error")
    assert param is None or error["param"] == param


@pytest.mark.parametrize("name", ["input_file_id", "endpoint", "completion_window"])
def test_a_missing_parameter_is_named_in_openais_words(http: httpx.Client, body: Body, name: str) -> None:
    del body[name]
    error = refusal(http.post("/v1/batches", json=body))
    assert error["message"] == f"Missing required parameter: '{name}'."
    assert (error["code"], error["param"]) == ("missing_required_parameter", name)


def test_an_unknown_endpoint_is_told_the_known_ones(http: httpx.Client, body: Body) -> None:
    message = refusal(http.post("/v1/batches", json=body | {"endpoint": "/v1/x"}))["message"]
    assert message.startswith("Invalid endpoint: /v1/x. Supported values: ")
    assert all(name in message for name in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"))


@pytest.mark.parametrize(
    "raw", [b"", b"{nope", b"[]", b'"text"', b"null", b"\xff\xfe", b'{"metadata": {"a": "\\ud800"}}', b'{"a": NaN}']
)
def test_a_body_that_is_no_json_object_is_refused(http: httpx.Client, raw: bytes) -> None:
    answer = http.post("/v1/batches", content=raw, headers={"Content-Type": "application/json"})
    assert (answer.status_code, refusal(answer)["code"]) == (400, "invalid_json")


def test_a_batch_of_a_file_that_does_not_exist_is_made_and_fails_in_openais_words(
    stack: RunningStack, http: httpx.Client, body: Body
) -> None:
    gone = stack.client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    stack.client.files.delete(gone.id)
    for file_id in (gone.id, "file-nope"):
        answer = http.post("/v1/batches", json=body | {"input_file_id": file_id})
        assert (answer.status_code, answer.json()["status"]) == (200, "validating")
        batch = stack.wait(stack.client.batches.retrieve(answer.json()["id"]))
        assert (batch.status, batch.input_file_id, batch.batchyard["input_sha256"]) == ("failed", file_id, None)
        (error,) = batch.errors.data
        assert (error.code, error.param, error.line) == ("invalid_request", "file_id", None)
        assert error.message.startswith(f"Cannot find file '{file_id}', or organization ")
        happened = http.get(f"/v1/batches/{batch.id}/events").json()["data"]
        assert [event["type"] for event in happened] == ["batch.created", "batch.failed"]
        assert http.post(f"/v1/batches/{batch.id}/retry").status_code == 409


def test_a_file_of_another_purpose_is_refused(stack: RunningStack, http: httpx.Client, body: Body) -> None:
    stored = stack.client.files.create(file=("a.txt", b"text"), purpose="user_data")
    error = refusal(http.post("/v1/batches", json=body | {"input_file_id": stored.id}))
    assert error["param"] == "input_file_id"
    assert "purpose" in error["message"]


@pytest.mark.parametrize("window", ["24h", "600s", "10m", "7d", "30h"])
def test_windows_within_the_bounds_are_taken_and_set_the_expiry(http: httpx.Client, body: Body, window: str) -> None:
    batch = http.post("/v1/batches", json=body | {"completion_window": window}).json()
    seconds = int(window[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[window[-1]]
    assert (batch["completion_window"], batch["expires_at"] - batch["created_at"]) == (window, seconds)


def test_batches_are_listed_newest_first_by_twenty(stack: RunningStack, http: httpx.Client, body: Body) -> None:
    stack = stack.in_project(f"listed-{time.time_ns()}")  # no batch of another test's job or schedule comes between
    headers = {"Authorization": f"Bearer {stack.key}"}
    ids = [http.post("/v1/batches", json=body, headers=headers).json()["id"] for _ in range(22)]
    page = http.get("/v1/batches", headers=headers).json()
    assert [batch["id"] for batch in page["data"]] == ids[:1:-1]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[21], ids[2], True)
    walked = [batch.id for batch in stack.client.batches.list(limit=7)]
    assert walked == ids[::-1]


@pytest.mark.parametrize("query", ["after=batch_nope", "limit=0", "limit=101"])
def test_a_list_that_cannot_be_is_refused(http: httpx.Client, query: str) -> None:
    answer = http.get(f"/v1/batches?{query}")
    assert (answer.status_code, refusal(answer)["param"]) == (400, query.partition("=")[0])


def test_the_same_key_and_body_make_one_batch_also_at_once(http: httpx.Client, body: Body) -> None:
    headers = {"Idempotency-Key": "concurrent"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: http.post("/v1/batches", json=body, headers=headers), range(16)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_the_same_key_with_another_body_is_a_final_409(http: httpx.Client, body: Body) -> None:
    headers = {"Idempotency-Key": "reused"}
    first = http.post("/v1/batches", json=body, headers=headers).json()
    answer = http.post("/v1/batches", json=body | {"metadata": {"a": "b"}}, headers=headers)
    assert (answer.status_code, refusal(answer)["code"]) == (409, "idempotency_key_reused")
    assert "conflict" in refusal(answer)["message"], "which clients look for in a 409"
    assert answer.headers["x-should-retry"] == "false"
    reordered = json.dumps(dict(reversed(body.items())), indent=2)
    assert http.post("/v1/batches", content=reordered, headers=headers).json()["id"] == first["id"]
    assert http.post("/v1/batches", json=body).json()["id"] != first["id"]


def test_an_idempotency_key_in_the_body_is_taken_like_the_header(http: httpx.Client, body: Body) -> None:
    first = http.post("/v1/batches", json=body | {"idempotency_key": "in-body"}).json()
    assert http.post("/v1/batches", json=body | {"idempotency_key": "in-body"}).json()["id"] == first["id"]
    headers = {"Idempotency-Key": "in-body"}
    assert http.post("/v1/batches", json=body, headers=headers).json()["id"] == first["id"]
    both = http.post("/v1/batches", json=body | {"idempotency_key": "in-body"}, headers=headers)
    assert both.json()["id"] == first["id"]
    other = http.post("/v1/batches", json=body | {"idempotency_key": "other"}, headers=headers)
    assert (other.status_code, refusal(other)["param"]) == (400, "idempotency_key")
    changed = http.post("/v1/batches", json=body | {"idempotency_key": "in-body", "metadata": {"a": "b"}})
    assert changed.status_code == 409
    for key in ("", "k" * 256):
        assert http.post("/v1/batches", json=body | {"idempotency_key": key}).status_code == 400


def test_an_idempotency_key_has_1_to_255_characters(http: httpx.Client, body: Body) -> None:
    for key in ("", "k" * 256):
        answer = http.post("/v1/batches", json=body, headers={"Idempotency-Key": key})
        assert (answer.status_code, refusal(answer)["param"]) == (400, "Idempotency-Key")


def test_an_unknown_batch_is_404_in_openais_words(http: httpx.Client) -> None:
    for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/retry"), ("GET", "/results")):
        answer = http.request(method, f"/v1/batches/batch_nope{path}")
        assert (answer.status_code, refusal(answer)["message"]) == (404, "No batch found with id 'batch_nope'.")


def test_the_output_expires_when_it_is_told_to(stack: RunningStack) -> None:
    expires_after = {"anchor": "created_at", "seconds": 3600}
    batch = stack.wait(stack.submit([a_chat("a", "hello")], output_expires_after=expires_after))
    output = stack.client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.expires_at) == ("batch_output", output.created_at + 3600)
