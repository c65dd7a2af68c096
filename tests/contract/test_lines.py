"""Output and error lines, as contract.md promises them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import MIXED
from tests.support.stacks import RunningStack, a_chat


def test_every_request_is_answered_once_and_in_input_order(stack: RunningStack, mixed: Any) -> None:
    output, errors = stack.lines(mixed.output_file_id), stack.lines(mixed.error_file_id)
    numbers = [int(line["custom_id"].removeprefix("id-")) for line in output]
    failed = [int(line["custom_id"].removeprefix("id-")) for line in errors]
    assert (numbers, failed) == (sorted(numbers), sorted(failed))
    assert sorted(numbers + failed) == list(range(MIXED))
    counts = mixed.request_counts
    assert (counts.total, counts.completed, counts.failed) == (MIXED, len(output), len(errors))


def test_a_good_line_has_a_response_and_no_error(stack: RunningStack, mixed: Any) -> None:
    lines = stack.lines(mixed.output_file_id)
    for line in lines:
        assert set(line) == {"id", "custom_id", "response", "error"}
        assert line["id"].startswith("batch_req_")
        assert (line["error"], line["response"]["status_code"]) == (None, 200)
        assert set(line["response"]) == {"status_code", "request_id", "body"}
        assert line["response"]["body"]["choices"][0]["message"]["content"] == "hello"
    assert len({line["id"] for line in lines}) == len({line["response"]["request_id"] for line in lines}) == len(lines)


def test_what_an_engine_refuses_is_a_4xx_with_an_error_body(stack: RunningStack, mixed: Any) -> None:
    failed = stack.lines(mixed.error_file_id)
    assert len(failed) == 15
    for line in failed:
        assert (line["response"]["status_code"], line["error"]) == (400, None)
        assert line["response"]["body"]["error"]["message"]


def test_usage_is_the_sum_over_the_output_lines(stack: RunningStack, mixed: Any) -> None:
    bodies = [line["response"]["body"] for line in stack.lines(mixed.output_file_id)]
    for name, total in (
        ("prompt_tokens", mixed.usage.input_tokens),
        ("completion_tokens", mixed.usage.output_tokens),
        ("total_tokens", mixed.usage.total_tokens),
    ):
        assert sum(body["usage"][name] for body in bodies) == total > 0


def test_a_batch_without_failures_has_no_error_file_and_names_its_model(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat(f"id-{number}", "x") for number in range(3)]))
    assert (batch.status, batch.error_file_id, batch.model) == ("completed", None, "echo")


def test_a_batch_whose_lines_all_fail_is_completed_without_an_output_file(stack: RunningStack) -> None:
    long = a_chat("a", "word " * 2000, model="nano", max_tokens=4)
    batch = stack.wait(stack.submit([long]))
    assert (batch.status, batch.output_file_id) == ("completed", None)
    assert batch.request_counts.to_dict() == {"total": 1, "completed": 0, "failed": 1}
    (line,) = stack.lines(batch.error_file_id)
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_completions_and_embeddings_are_answered(stack: RunningStack) -> None:
    def line(url: str, **body: Any) -> dict[str, Any]:
        return {"custom_id": "a", "method": "POST", "url": url, "body": body}

    completion = line("/v1/completions", model="echo", prompt="once upon")
    embedding = line("/v1/embeddings", model="vectors", input="a text")
    batches = [
        stack.submit([completion], endpoint="/v1/completions"),
        stack.submit([embedding], endpoint="/v1/embeddings"),
    ]
    bodies = [stack.lines(stack.wait(batch).output_file_id)[0]["response"]["body"] for batch in batches]
    assert bodies[0]["choices"][0]["text"] == "once upon"
    assert len(bodies[1]["data"][0]["embedding"]) > 0


# test_copies.py::test_a_refusal_is_shared_too has such lines, and waits as long for them.
@pytest.mark.exhaustive
def test_a_request_that_runs_too_long_was_never_answered(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat("a", "x", model="late"), a_chat("b", "x")]))
    (line,) = stack.lines(batch.error_file_id)
    assert (line["custom_id"], line["response"], line["error"]["code"]) == ("a", None, "request_timeout")
    assert [line["custom_id"] for line in stack.lines(batch.output_file_id)] == ["b"]
