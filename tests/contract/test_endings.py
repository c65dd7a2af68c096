"""Cancel and deletion, as contract.md promises them: no line is lost in any order of events.

A batch that expires: test_deadlines.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai

from tests.contract.conftest import refusal
from tests.support.stacks import RunningStack, a_chat


def slow(count: int) -> list[dict[str, Any]]:
    return [a_chat(f"id-{number}", "x", model="slow") for number in range(count)]


def conserved(stack: RunningStack, batch: Any, total: int) -> tuple[list[Any], list[Any]]:
    """Assert that each request has exactly one line; return the output and error lines."""
    output, errors = stack.lines(batch.output_file_id), stack.lines(batch.error_file_id)
    ids = [line["custom_id"] for line in output + errors]
    assert sorted(ids) == sorted(f"id-{number}" for number in range(total))
    counts = batch.request_counts
    never_run = batch.batchyard["expired"] + batch.batchyard["cancelled"]
    assert (counts.total, counts.completed) == (total, len(output))
    assert counts.failed + never_run == len(errors)
    return output, errors


def test_cancelling_keeps_what_was_answered_and_loses_no_line(stack: RunningStack) -> None:
    batch = stack.submit(slow(2000))
    stack.wait(batch, until=lambda batch: batch.request_counts.completed > 0)
    assert stack.client.batches.cancel(batch.id).status == "cancelling"
    batch = stack.wait(batch)
    assert (batch.status, batch.request_counts.failed) == ("cancelled", 0)
    assert batch.cancelling_at <= batch.cancelled_at
    output, errors = conserved(stack, batch, 2000)
    assert output
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert all(line["response"] is None for line in errors)
    assert stack.client.batches.cancel(batch.id).status == "cancelled"


def test_twenty_cancels_of_a_finishing_batch_agree_on_its_end(stack: RunningStack) -> None:
    batch = stack.submit([a_chat(f"id-{number}", "x") for number in range(200)])
    stack.wait(batch, until=lambda batch: batch.request_counts.completed == 200, seconds=60)

    def cancel(_: int) -> str:
        try:
            return stack.client.batches.cancel(batch.id).status
        except openai.ConflictError as error:
            return str(error.body["message"])  # type: ignore[index]

    with ThreadPoolExecutor(20) as pool:
        outcomes = set(pool.map(cancel, range(20)))
    batch = stack.wait(batch)
    allowed = {
        "completed": {"Cannot cancel a batch with status 'completed'."},
        "cancelled": {"cancelling", "cancelled"},
    }
    assert outcomes <= allowed[batch.status]
    output, _ = conserved(stack, batch, 200)
    assert len(output) == 200


def test_cancelling_at_once_is_never_lost(stack: RunningStack) -> None:
    batches = [stack.submit(slow(1000)) for _ in range(3)]  # they run longer than submitting them takes
    for batch in batches:
        assert stack.client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    for batch in batches:
        ended = stack.wait(batch)
        assert (ended.status, ended.completed_at, ended.failed_at) == ("cancelled", None, None)
        conserved(stack, ended, 1000)


def test_cancelling_what_has_ended_is_a_final_409(http: httpx.Client, mixed: Any) -> None:
    answer = http.post(f"/v1/batches/{mixed.id}/cancel")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert refusal(answer)["message"] == "Cannot cancel a batch with status 'completed'."


def test_deleting_the_input_changes_nothing_for_its_batch(stack: RunningStack, http: httpx.Client) -> None:
    batch = stack.submit([a_chat("id-0", "hello")])
    assert stack.client.files.delete(batch.input_file_id).deleted
    assert http.get(f"/v1/files/{batch.input_file_id}").status_code == 404
    conserved(stack, stack.wait(batch), 1)
