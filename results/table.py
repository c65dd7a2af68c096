"""Results as a table: a row for each request, with its answer and its error."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from store.formats.results import ResultRow

SCHEMA = pa.schema(
    [
        ("line", pa.int64()),
        ("custom_id", pa.string()),
        ("model", pa.string()),
        ("status_code", pa.int32()),
        ("text", pa.string()),
        ("embedding", pa.list_(pa.float32())),
        ("finish_reason", pa.string()),
        ("input_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("seconds", pa.float64()),
        ("error_code", pa.string()),
        ("error_message", pa.string()),
        ("metadata", pa.string()),
    ]
)


def record(row: ResultRow) -> dict[str, Any]:
    """Return the values of SCHEMA of a request."""
    response = row.response or {}
    usage = response.get("usage") or {}
    choices = response.get("choices") or [{}]
    data = response.get("data") or [{}]
    error = row.failure if isinstance(row.failure, dict) else {}
    metadata = row.body.get("metadata")
    return {
        "line": row.line,
        "custom_id": row.custom_id,
        "model": row.body.get("model"),
        "status_code": row.status_code,
        "text": row.text,
        "embedding": data[0].get("embedding") if isinstance(data[0].get("embedding"), list) else None,
        "finish_reason": choices[0].get("finish_reason"),
        "input_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "seconds": row.seconds,
        "error_code": None if error.get("code") is None else str(error["code"]),
        "error_message": None if error.get("message") is None else str(error["message"]),
        "metadata": None if metadata is None else json.dumps(metadata, ensure_ascii=False),
    }
