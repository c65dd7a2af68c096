"""Output lines have the form of OpenAI's Batch API, and say why a request failed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batchyard.endpoints import output_lines


def test_an_answer_holds_the_response_body_as_it_came() -> None:
    line = json.loads(output_lines.line("a", 200, b'{"n": 1.50}', None))
    assert (line["custom_id"], line["error"]) == ("a", None)
    assert (line["response"]["status_code"], line["response"]["body"]) == (200, {"n": 1.5})
    assert line["id"].startswith("batch_req_") and line["response"]["request_id"].startswith("req_")


def test_a_request_that_was_not_run_has_an_error_and_no_response() -> None:
    error = {"code": "engine_unavailable", "message": "m"}
    line = json.loads(output_lines.line("a", None, None, error))
    assert (line["response"], line["error"]) == (None, error)


def test_ids_are_unique() -> None:
    assert len({json.loads(output_lines.line("a", 200, b"{}", None))["id"] for _ in range(100)}) == 100


def test_an_unanswered_request_has_the_same_line_each_time() -> None:
    first, second = (output_lines.unanswered([3, 70_000], ["a", "b"], "batch_expired", "m") for _ in range(2))
    assert first == second
    lines = [json.loads(line) for line in first]
    assert [line["custom_id"] for line in lines] == ["a", "b"]
    assert len({line["id"] for line in lines}) == 2
    assert all(line["response"] is None and line["error"]["code"] == "batch_expired" for line in lines)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"error": {"code": "context_length_exceeded"}}, "context_length_exceeded"),
        ({"error": {"code": None}}, "status_400"),
        ({"error": {"code": 400}}, "status_400"),
        ({"error": {"code": "Not A Code"}}, "status_400"),
        ({"error": {"code": "x" * 65}}, "status_400"),
        ({"detail": "no error object"}, "status_400"),
    ],
)
def test_a_failed_request_is_counted_by_its_error_code_or_its_status(body: dict[str, Any], code: str) -> None:
    line = output_lines.line("a", 400, json.dumps(body).encode(), None)
    assert output_lines.error_code(line) == code


def test_the_error_of_a_request_that_was_not_run_gives_the_code() -> None:
    line = output_lines.line("a", None, None, {"code": "batch_cancelled", "message": "m"})
    assert output_lines.error_code(line) == "batch_cancelled"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"response": {"status_code": 400, "body": {"error": {"code": "c", "message": "m"}}}}, ("c", "m")),
        ({"response": {"status_code": 400, "body": {"error": {"type": "t", "message": None}}}}, ("t", "")),
        ({"response": {"status_code": 500, "body": {}}}, ("status 500", "")),
        ({"response": None, "error": {"code": "batch_expired", "message": "m"}}, ("batch_expired", "m")),
    ],
)
def test_a_reason_has_a_code_even_if_the_engine_gave_none(answer: dict[str, Any], reason: tuple[str, str]) -> None:
    assert output_lines.reason(answer) == reason


@pytest.mark.parametrize(
    ("status", "error", "passing"),
    [
        *((status, None, True) for status in (401, 402, 403, 404, 408, 409, 429, 500, 502, 503)),
        *((status, None, False) for status in (400, 413, 422)),
        *((None, {"code": code}, True) for code in ("request_timeout", "engine_error", "batch_expired")),
        (None, {"code": "engine_died"}, False),
        (None, {"code": "invalid_json_line", "line": 3}, False),
    ],
)
def test_what_another_batch_may_answer_is_told_from_what_would_fail_again(
    status: int | None, error: dict[str, Any] | None, passing: bool
) -> None:
    response = None if status is None else {"status_code": status, "body": {"error": {"message": "no"}}}
    assert output_lines.is_passing({"response": response, "error": error}) is passing
