"""Errors of the gateway, in the dialect of the path: OpenAI's, or Anthropic's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from batchyard import json_lines
from batchyard.errors import BatchyardError, RateLimitError
from batchyard.wording import with_code
from webapp.anthropic import errors as anthropic_errors


def body(path: str, status: int, fault: Mapping[str, Any], request_id: str | None = None) -> dict[str, Any]:
    """Return the body of an error.

    Args:
        fault: message, type, param and code.
    """
    message = with_code(str(fault["message"]), fault.get("code"))
    if anthropic_errors.is_spoken(path):
        return anthropic_errors.of_status(status, message, request_id, fault.get("param")).model_dump()
    return {"error": {"message": message, **{name: fault.get(name) for name in ("type", "param", "code")}}}


def response(
    path: str,
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    kind: str | None = None,
    headers: Mapping[str, str] | None = None,
    request_id: str | None = None,
) -> web.Response:
    """Return the response with an error."""
    kind = kind or ("invalid_request_error" if status < 500 else "server_error")
    fault = {"message": message, "type": kind, "param": param, "code": code}
    return web.Response(
        status=status,
        body=json_lines.dumps(body(path, status, fault, request_id)),
        content_type="application/json",
        headers=headers,
    )


def of_error(
    path: str, error: BatchyardError, *, headers: Mapping[str, str], request_id: str | None = None
) -> web.Response:
    """Return the response with one of our errors."""
    if isinstance(error, RateLimitError):
        headers = {**headers, "Retry-After": str(math.ceil(error.retry_after))}
    return response(
        path,
        error.status,
        error.message,
        code=error.code,
        param=error.param,
        kind=error.type,
        headers=headers,
        request_id=request_id,
    )
