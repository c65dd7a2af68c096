"""POST /v1/batches/{id}/retry: a new batch of the unanswered requests."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import httpx
import openai
import pytest

from tests.contract.conftest import refusal
from tests.support.stacks import RunningStack, a_chat


def retry(stack: RunningStack, http: httpx.Client, batch_id: str, **body: Any) -> Any:
    answer = http.post(f"/v1/batches/{batch_id}/retry", json=body)
    assert answer.status_code == 200, answer.text
    return stack.client.batches.retrieve(answer.json()["id"])


def test_the_failed_lines_run_again_byte_for_byte_and_the_old_batch_stays(
    stack: RunningStack, http: httpx.Client, mixed: Any
) -> None:
    before = http.get(f"/v1/batches/{mixed.id}").json()
    new = retry(stack, http, mixed.id)
    failed = {line["custom_id"] for line in stack.lines(mixed.error_file_id)}
    raw = stack.client.files.content(mixed.input_file_id).content.splitlines(keepends=True)
    wanted = b"".join(line for line in raw if json.loads(line)["custom_id"] in failed)
    assert stack.client.files.content(new.input_file_id).content == wanted
    assert (new.endpoint, new.metadata, new.completion_window) == (mixed.endpoint, mixed.metadata, "24h")
    assert new.batchyard["retry_of"] == mixed.id
    assert stack.wait(new).request_counts.total == 15
    after = http.get(f"/v1/batches/{mixed.id}").json()
    assert after["batchyard"].pop("retries")[-1] == new.id
    before["batchyard"].pop("retries")
    assert after == before


def test_cancelled_lines_run_again_with_what_is_asked_anew(stack: RunningStack, http: httpx.Client) -> None:
    def is_cancelled_halfway(batch: Any) -> bool:
        if not batch.request_counts.completed:
            return False
        with suppress(openai.ConflictError):  # it has ended since it was looked at
            stack.client.batches.cancel(batch.id)
        return stack.wait(stack.client.batches.retrieve(batch.id)).error_file_id is not None

    requests = [a_chat(f"id-{number}", "x", model="slow") for number in range(320)]
    batch = stack.wait(stack.caught(lambda: stack.submit(requests), until=is_cancelled_halfway))
    new = retry(stack, http, batch.id, completion_window="2h", metadata={"try": "2"})
    assert (new.completion_window, new.metadata) == ("2h", {"try": "2"})
    ended = stack.wait(new)
    assert ended.status == "completed"
    ids = [line["custom_id"] for part in (batch, ended) for line in stack.lines(part.output_file_id)]
    assert sorted(ids) == sorted(f"id-{number}" for number in range(320))


def test_an_idempotency_key_makes_one_retry_also_when_the_input_is_gone(
    stack: RunningStack, http: httpx.Client
) -> None:
    batch = stack.wait(stack.submit([a_chat(f"id-{number}", "x", model="failing") for number in range(3)]))
    headers = {"Idempotency-Key": "retry"}
    ids = {http.post(f"/v1/batches/{batch.id}/retry", headers=headers).json()["id"] for _ in range(2)}
    stack.client.files.delete(batch.input_file_id)
    ids.add(http.post(f"/v1/batches/{batch.id}/retry", headers=headers).json()["id"])
    assert len(ids) == 1


def test_what_cannot_be_retried_says_why(stack: RunningStack, http: httpx.Client) -> None:
    def refusal_of(batch: Any) -> str:
        answer = http.post(f"/v1/batches/{batch.id}/retry")
        assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
        return str(refusal(answer)["message"])

    running = stack.submit_endless()
    assert "wait for its end" in refusal_of(running)
    stack.client.batches.cancel(running.id)
    assert "nothing to retry" in refusal_of(stack.wait(stack.submit([a_chat("a", "x")])))
    assert "failed validation" in refusal_of(stack.wait(stack.submit("{nope}")))
    failing = stack.wait(stack.submit([a_chat(f"id-{number}", "x", model="failing") for number in range(3)]))
    stack.client.files.delete(failing.input_file_id)
    assert "input file of this batch was deleted" in refusal_of(failing)


@pytest.mark.parametrize("body", [{"completion_window": "400d"}, {"metadata": {"a": 1}}, {"endpoint": "/v1/x"}])
def test_a_retry_with_a_wrong_body_is_refused(http: httpx.Client, mixed: Any, body: dict[str, Any]) -> None:
    answer = http.post(f"/v1/batches/{mixed.id}/retry", json=body)
    assert answer.status_code == 400
    refusal(answer)
