"""Results: an ended batch's requests, each beside its output or error line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any

import orjson

from batchyard import json_lines
from batchyard.endpoints import output_lines, responses
from batchyard.endpoints.responses import NoText, Output
from batchyard.errors import BatchyardError
from store.formats import seconds as seconds_file

OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"
"""The artifacts of a batch with its answers and its errors."""
ROW = "row"
"""Key of a request's line with the cells of the row of a table that it was made of."""


@dataclass(frozen=True)
class ResultRow:
    """One request of a finished batch and what became of it.

    `custom_id` is empty if the line is no valid request and has none. `seconds` is its time in the engine; None if it
    was in none, or nobody measured it.
    """

    line: int
    custom_id: str
    body: dict[str, Any]
    status_code: int | None
    response: dict[str, Any] | None
    error: dict[str, Any] | None
    seconds: float | None = None

    @classmethod
    def of(
        cls, line: int, custom_id: str, body: dict[str, Any], answer: Mapping[str, Any], seconds: float | None = None
    ) -> ResultRow:
        """A request and its parsed output line, which is empty if the request has no answer yet."""
        response = answer.get("response") or {}
        status_code, error = response.get("status_code"), answer.get("error")
        return cls(line, custom_id, body, status_code, response.get("body"), error, seconds)

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """The error of a request that failed: that of the line, or the one in its response body."""
        return self.error or responses.error(self.response) or None

    @cached_property
    def output(self) -> Output | None:
        """The first text that a model has generated; None if the request failed, or asked for no text."""
        return next(iter(responses.outputs(self.response)), None) if self.status_code == 200 else None

    @property
    def text(self) -> str | None:
        """The first output's text; None without one."""
        return None if self.output is None else self.output.text

    @property
    def no_text(self) -> NoText | None:
        """Why an answered request has no text; None if it has one, failed, or asked for no text."""
        return None if self.output is None else self.output.no_text


def row_of(raw: bytes) -> dict[str, Any]:
    """Return the cells of the table's row that a request was made of; empty without one."""
    row = _object(raw).get(ROW) if f'"{ROW}"'.encode() in raw else None
    return row if isinstance(row, dict) else {}


def readable(raw: bytes) -> tuple[str, dict[str, Any]]:
    """Return custom_id and body of an input line; empty for an invalid line without them."""
    request = _object(raw)
    custom_id, body = request.get("custom_id"), request.get("body")
    return custom_id if isinstance(custom_id, str) else "", body if isinstance(body, dict) else {}


def _object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; empty if it is none."""
    try:
        request = json_lines.read(raw)
    except orjson.JSONDecodeError:
        return {}
    return request if isinstance(request, dict) else {}


def rows(
    source: IO[bytes], output: IO[bytes] | None, errors: IO[bytes] | None, seconds: IO[bytes] | None = None
) -> Iterator[ResultRow]:
    """Yield a batch's requests in input order, each with its line of these files, where they are not None.

    Raises BatchyardError: a request has no line in either file.
    """
    answers, failures = (map(json_lines.loads, file or ()) for file in (output, errors))
    ended: dict[str, Any] = {}
    answer, failure = next(answers, ended), next(failures, ended)
    for number, raw in enumerate(source, 1):
        if json_lines.is_blank(raw):
            continue
        custom_id, body = readable(raw)
        if output_lines.invalid_line(failure) == number:  # it may have the custom_id of a valid line
            yield ResultRow.of(number, failure["custom_id"] or "", body, failure)
            failure = next(failures, ended)
        elif answer.get("custom_id") == custom_id:
            yield ResultRow.of(number, custom_id, body, answer, seconds_file.read(seconds, number))
            answer = next(answers, ended)
        elif failure.get("custom_id") == custom_id:
            yield ResultRow.of(number, custom_id, body, failure, seconds_file.read(seconds, number))
            failure = next(failures, ended)
        else:
            raise BatchyardError(f"line {number}: no answer in either file")
