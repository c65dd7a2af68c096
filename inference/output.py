"""Output lines: OpenAI's Batch API's form of one answer."""

from __future__ import annotations

import uuid

import orjson


def line(custom_id: str, status_code: int | None, body: bytes | None, error: dict[str, str] | None) -> str:
    """One line of an output or error file, as JSON. `body`: the response body as JSON, None for a request not run."""
    response = None
    if status_code is not None and body is not None:
        response = {
            "status_code": status_code,
            "request_id": f"req_{uuid.uuid4().hex}",
            "body": orjson.Fragment(body),
        }
    return orjson.dumps(
        {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": response, "error": error}
    ).decode()
