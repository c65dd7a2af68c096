"""Errors of the gateway, in the dialect of the path: OpenAI's, or Anthropic's."""

import math
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from batchyard import json_lines
from batchyard.errors import BatchyardError, RateLimitError
from batchyard.wording import with_code
from webapp.anthropic import errors as anthropic_errors


def response(
    path: str,
    status: int,
    fault: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    request_id: str | None = None,
) -> web.Response:
    """Return the response with an error. `fault`: its message and, if it has them, type, param and code."""
    message = with_code(str(fault["message"]), fault.get("code"))
    if anthropic_errors.is_spoken(path):
        body = anthropic_errors.of_status(status, message, request_id, fault.get("param")).model_dump()
    else:
        said = {"type": "invalid_request_error" if status < 500 else "server_error", **fault}
        body = {"error": {"message": message, **{name: said.get(name) for name in ("type", "param", "code")}}}
    content = json_lines.dumps(body)
    return web.Response(status=status, body=content, content_type="application/json", headers=headers)


def of_error(
    path: str, error: BatchyardError, *, headers: Mapping[str, str], request_id: str | None = None
) -> web.Response:
    if isinstance(error, RateLimitError):
        headers = {**headers, "Retry-After": str(math.ceil(error.retry_after))}
    fault = {name: getattr(error, name) for name in ("message", "type", "param", "code")}
    return response(path, error.status, fault, headers=headers, request_id=request_id)
