"""Batches that get their requests while they run."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat

HOW: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "open": True}


def lines(*custom_ids: str) -> str:
    return "".join(json.dumps(a_chat(name, f"hello {name}")) + "\n" for name in custom_ids)


def test_an_open_batch_answers_what_comes_and_ends_when_it_is_closed(stack: RunningStack, http: httpx.Client) -> None:
    batch = stack.client.batches.create(
        input_file_id=None,  # type: ignore[arg-type]
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_body={"open": True},
    )
    assert batch.status == "in_progress"
    path = f"/v1/batches/{batch.id}"
    first = http.post(f"{path}/requests", content=lines("a", "b"), headers={"Idempotency-Key": "1"})
    assert (first.status_code, first.json()["first_line"]) == (200, 1)
    until(lambda: http.get(path).json()["request_counts"]["completed"] == 2)
    assert http.get(path).json()["status"] == "in_progress"
    assert [json.loads(line)["custom_id"] for line in http.get(f"{path}/results").text.splitlines()]
    assert http.post(f"{path}/requests", content=lines("c")).json()["first_line"] == 3
    again = http.post(f"{path}/requests", content=lines("a", "b"), headers={"Idempotency-Key": "1"})
    assert again.json() == first.json()
    assert http.post(f"{path}/close").json()["batchyard"]["open"] is False
    ended = stack.wait(stack.client.batches.retrieve(batch.id))
    assert (ended.status, ended.request_counts.total, ended.request_counts.completed) == ("completed", 3, 3)
    assert [line["custom_id"] for line in stack.lines(ended.output_file_id)] == ["a", "b", "c"]
    assert [line["custom_id"] for line in stack.lines(ended.input_file_id)] == ["a", "b", "c"]
    late = http.post(f"{path}/requests", content=lines("d"))
    assert (late.status_code, late.json()["error"]["code"]) == (409, "batch_closed")
    assert http.post(f"{path}/close").json()["status"] == "completed"


def test_an_open_batch_without_requests_completes_when_it_is_closed(stack: RunningStack, http: httpx.Client) -> None:
    batch = http.post("/v1/batches", json=HOW).json()
    http.post(f"/v1/batches/{batch['id']}/close")
    ended = stack.wait(stack.client.batches.retrieve(batch["id"]))
    assert (ended.status, ended.request_counts.total, ended.output_file_id) == ("completed", 0, None)


def test_a_cancelled_open_batch_keeps_what_was_answered(stack: RunningStack, http: httpx.Client) -> None:
    path = f"/v1/batches/{http.post('/v1/batches', json=HOW).json()['id']}"
    http.post(f"{path}/requests", content=lines("a"))
    until(lambda: http.get(path).json()["request_counts"]["completed"] == 1)
    assert http.post(f"{path}/cancel").status_code == 200
    refused = http.post(f"{path}/requests", content=lines("b"))
    assert refused.status_code == 409 and "has status 'cancel" in refused.json()["error"]["message"]
    ended = stack.wait(stack.client.batches.retrieve(path.rpartition("/")[2]))
    assert ended.status == "cancelled"
    assert [line["custom_id"] for line in stack.lines(ended.output_file_id)] == ["a"]
