"""A batch whose requests stand in the body that creates it."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.stacks import RunningStack, a_chat

HOW: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


def test_requests_in_the_body_are_answered_like_those_of_a_file(stack: RunningStack) -> None:
    requests = [a_chat(f"id-{number}", f"hello {number}") for number in range(20)]
    bare = [{"custom_id": request["custom_id"], "body": request["body"]} for request in requests]
    of_file = stack.wait(stack.submit(requests))
    inline = stack.wait(stack.client.batches.create(input_file_id=None, extra_body={"requests": bare}, **HOW))  # type: ignore[arg-type]
    assert (inline.status, inline.request_counts) == ("completed", of_file.request_counts)

    def answers(batch: Any) -> list[tuple[str, Any]]:
        lines = stack.lines(batch.output_file_id)
        return [(line["custom_id"], line["response"]["body"]["choices"]) for line in lines]

    assert answers(inline) == answers(of_file)
    assert stack.lines(inline.input_file_id) == requests


def test_a_bad_request_in_the_body_fails_the_batch_with_its_line(stack: RunningStack, http: httpx.Client) -> None:
    requests = [a_chat("a", "hello"), {"custom_id": "b"}, a_chat("a", "again")]
    batch = http.post("/v1/batches", json=HOW | {"requests": requests}).json()
    failed = stack.wait(stack.client.batches.retrieve(batch["id"]))
    assert failed.status == "failed"
    errors = [(error.line, error.code, error.param) for error in failed.errors.data]
    assert errors == [(2, "missing_required_parameter", "body"), (3, "duplicate_custom_id", "custom_id")]
    retried = http.post("/v1/batches", json=HOW | {"requests": requests, "on_invalid": "skip"}).json()
    ended = stack.wait(stack.client.batches.retrieve(retried["id"]))
    assert (ended.status, ended.request_counts.completed, ended.request_counts.failed) == ("completed", 1, 2)
