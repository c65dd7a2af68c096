"""Anthropic's errors, as https://docs.claude.com/en/api/errors and the package `anthropic` have them."""

from collections.abc import Mapping
from typing import Any

from batchyard.endpoints import output_lines
from batchyard.endpoints.catalog import MESSAGES
from webapp.anthropic.wire import MessageError, MessageErrorDetail

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OF_CODES = {"model_not_found": 404, "request_timeout": 504, "batch_failed": 400, "too_many_tasks": 400}


def is_spoken(path: str) -> bool:
    """True for a path whose clients speak Anthropic's dialect."""
    return f"{path}/".startswith(f"{MESSAGES.path}/")


def of_status(status: int, message: str, request_id: str | None, param: str | None = None) -> MessageError:
    type_ = _TYPES.get(status, _TYPES[400 if status < 500 else 500])
    # The package `anthropic` sends the request again without the parameter then.
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]} if param == "thread" else None
    return MessageError(error=MessageErrorDetail(type=type_, message=message, details=details), request_id=request_id)


def of_line(answer: Mapping[str, Any]) -> MessageError:
    """Return the error of a parsed line of an error file; an engine may have named its type."""
    response = answer.get("response") or {}
    code, message = output_lines.reason(answer)
    is_invalid = output_lines.invalid_line(answer) is not None
    status = response.get("status_code") or _OF_CODES.get(code, 400 if is_invalid else 500)
    param = str(output_lines.error(answer).get("param") or "").removeprefix("body.")
    error = of_status(status, message or code, response.get("request_id"), param)
    named = output_lines.error(answer).get("type")
    if isinstance(named, str) and named in _TYPES.values():
        error.error.type = named
    return error
