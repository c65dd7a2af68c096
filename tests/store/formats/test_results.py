"""A reader of results meets each request with its own answer."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from batchyard.errors import BatchyardError
from store.formats import results
from store.formats.results import ResultRow


def line(custom_id: str, status: int | None) -> bytes:
    body: dict[str, Any] = {"error": {}}
    if status == 200:
        body = {"choices": [{"message": {"content": f"to {custom_id}"}}]}
    response = None if status is None else {"status_code": status, "body": body}
    error = None if status else {"code": "x"}
    return json.dumps({"custom_id": custom_id, "response": response, "error": error}).encode() + b"\n"


def file(*lines: bytes) -> io.BytesIO:
    return io.BytesIO(b"".join(lines))


def source(custom_ids: str) -> io.BytesIO:
    requests = [json.dumps({"custom_id": name, "body": {"n": name}}).encode() + b"\n" for name in custom_ids]
    return file(*requests, b"\n")


def test_each_request_meets_its_own_line_of_either_file() -> None:
    output, errors = file(line("a", 200), line("d", 200)), file(line("b", 400), line("c", None))
    rows = list(results.rows(source("abcd"), output, errors))
    assert [(row.line, row.custom_id, row.status_code, row.text) for row in rows] == [
        (1, "a", 200, "to a"),
        (2, "b", 400, None),
        (3, "c", None, None),
        (4, "d", 200, "to d"),
    ]


def test_a_batch_need_not_have_both_files() -> None:
    assert [row.text for row in results.rows(source("a"), file(line("a", 200)), None)] == ["to a"]
    assert [row.error for row in results.rows(source("a"), None, file(line("a", None)))] == [{"code": "x"}]


def test_a_request_without_a_line_is_a_fault_that_names_its_line() -> None:
    with pytest.raises(BatchyardError, match="line 2: no answer in either file"):
        list(results.rows(source("ab"), file(line("a", 200)), None))


def test_a_line_that_is_not_the_next_of_its_file_answers_no_request() -> None:
    with pytest.raises(BatchyardError, match="line 1: no answer in either file"):
        list(results.rows(source("ba"), file(line("a", 200), line("b", 200)), None))


def test_a_row_tells_the_failure_of_a_request_that_ran_and_of_one_that_did_not() -> None:
    error = {"code": "too_long", "message": "too long"}
    ran = ResultRow.of(1, "a", {}, {"response": {"status_code": 400, "body": {"error": error}}, "error": None})
    expired = ResultRow.of(1, "a", {}, {"response": None, "error": error})
    assert (ran.failure, expired.failure) == (error, error)
    assert ResultRow.of(1, "a", {}, json.loads(line("a", 200))).failure is None
