"""Results as a table: a row for each request, with its answer and its error."""

import json
from typing import Any

import pyarrow as pa

from batchyard.endpoints import responses
from batchyard.endpoints.responses import TOKEN_IDS, Output
from store.formats.results import ResultRow

SCHEMA = pa.schema(
    [
        ("line", pa.int64()),
        ("custom_id", pa.string()),
        ("model", pa.string()),
        ("status_code", pa.int32()),
        ("text", pa.string()),
        ("reasoning", pa.string()),
        ("tool_calls", pa.string()),
        ("embeddings", pa.list_(pa.list_(pa.float32()))),
        ("labels", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float64())),
        ("tokens", pa.list_(pa.int64())),
        ("finish_reason", pa.string()),
        ("input_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("reasoning_tokens", pa.int64()),
        ("seconds", pa.float64()),
        ("error_code", pa.string()),
        ("error_message", pa.string()),
        ("metadata", pa.string()),
    ]
)


def record(row: ResultRow) -> dict[str, Any]:
    answered = row.status_code == 200
    output, usage = row.output or Output(), responses.usage(row.response)
    # An answer has one, too, if it has neither a text nor tokens.
    error = row.failure or {} if row.no_text in (None, TOKEN_IDS) else row.no_text._asdict()
    metadata = row.body.get("metadata")
    return {
        "line": row.line,
        "custom_id": row.custom_id,
        "model": text_of(row.body.get("model")),
        "status_code": row.status_code,
        "text": output.text,
        "reasoning": output.reasoning,
        "tool_calls": _json(list(output.tool_calls) or None),
        "embeddings": (responses.vectors(row.response, row.body) or None) if answered else None,
        "labels": (responses.labels(row.response) or None) if answered else None,
        "scores": (responses.scores(row.response) or None) if answered else None,
        "tokens": (responses.tokens(row.response) or None) if answered else None,
        "finish_reason": output.finish_reason,
        **{f"{name}_tokens": getattr(usage, f"{name}_tokens") for name in ("input", "cached", "output", "reasoning")},
        "seconds": row.seconds,
        "error_code": text_of(error.get("code") or error.get("type")),
        "error_message": text_of(error.get("message")),
        "metadata": _json(metadata),
    }


def text_of(value: Any) -> str | None:
    """Return a value as a text: JSON of what is none."""
    return value if value is None or isinstance(value, str) else _json(value)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
