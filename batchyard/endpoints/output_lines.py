"""Output lines: one answer each, in the form of OpenAI's Batch API."""

import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.endpoints import responses

CODE = re.compile("[a-z][a-z0-9_]{0,63}")
_PASSING = (401, 402, 403, 404, 408, 409, 425, 429)
"""Statuses that a mended key, a paid bill or some patience ends, beside those from 500 on."""
_LASTING = ("engine_died",)
NEVER_RUN = {
    "completed": None,
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed because the batch was cancelled."),
}
"""Code and message of a request that never ran, by the outcome of its batch. One that completes has none."""


def line(custom_id: str, status_code: int | None, body: bytes | None, error: dict[str, str] | None) -> str:
    """Return one line of an output or error file, as JSON."""
    response = None
    if status_code is not None and body is not None:
        response = {
            "status_code": status_code,
            "request_id": f"req_{uuid.uuid4().hex}",
            "body": orjson.Fragment(body),
        }
    return _line({"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": response, "error": error})


def unanswered(lines: Iterable[int], custom_ids: Iterable[str], code: str, message: str) -> list[str]:
    """Return output lines, as JSON, for requests that no engine answered. Their ids depend on `lines` alone."""
    error = {"code": code, "message": message}
    return [
        _line({"id": f"batch_req_{line:024x}", "custom_id": custom_id, "response": None, "error": error})
        for line, custom_id in zip(lines, custom_ids, strict=True)
    ]


def invalid(line: int, custom_id: str | None, error: Mapping[str, Any]) -> str:
    """Return the output line, as JSON, of an invalid input line; its id depends on `line` alone."""
    refusal = {**error, "line": line}
    return _line({"id": f"batch_req_{line:024x}", "custom_id": custom_id, "response": None, "error": refusal})


def _line(answer: Mapping[str, Any]) -> str:
    return json_lines.line(answer).decode().removesuffix("\n")


def invalid_line(answer: Mapping[str, Any]) -> int | None:
    """Return the number of the input line that was no valid request, else None."""
    line = (answer.get("error") or {}).get("line")
    return line if isinstance(line, int) else None


def error(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the error of a parsed output line or of its response body; empty if none."""
    return answer.get("error") or responses.error((answer.get("response") or {}).get("body"))


def reason(answer: Mapping[str, Any]) -> tuple[str, str]:
    """Return code and message of a parsed output line that is an error, for display."""
    details = error(answer)
    code = details.get("code") or details.get("type") or f"status {_status_code(answer)}"
    return str(code), str(details.get("message") or "")


def is_passing(answer: Mapping[str, Any]) -> bool:
    """True for a parsed output line whose error another batch may not meet: a busy, broken or unpaid server.

    What an engine has refused, what is no valid request and what kills engines would fail again.
    """
    status = _status_code(answer)
    if status is None:
        return invalid_line(answer) is None and error(answer).get("code") not in _LASTING
    return status >= 500 or status in _PASSING


def error_code(line: str) -> str:
    """Return the code of an output line that is an error, for metrics.

    It is `status_<n>` where the engine gave none or one that is not an identifier.
    """
    answer = json_lines.loads(line)
    code = error(answer).get("code")
    if isinstance(code, str) and CODE.fullmatch(code):
        return code
    return f"status_{_status_code(answer)}"


def _status_code(answer: Mapping[str, Any]) -> int | None:
    return (answer.get("response") or {}).get("status_code")
