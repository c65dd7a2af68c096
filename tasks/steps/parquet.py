"""Step `parquet`: the results as one table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from batchyard import responses
from batchyard.responses import Output
from store.formats.results import ResultRow
from tasks.steps.step import Results, Step, StepOptions

BLOCK_ROWS = 2000
BLOCK_BYTES = 64 * 1024 * 1024
"""Approximate limit of the texts and embeddings of a block in memory."""
FLOAT_BYTES = 32
"""A Python float and its place in a list."""
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
        ("finish_reason", pa.string()),
        ("input_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("reasoning_tokens", pa.int64()),
        ("seconds", pa.float64()),
        ("error_code", pa.string()),
        ("error_message", pa.string()),
        ("metadata", pa.string()),
    ]
)


class ParquetOptions(StepOptions):
    """No options of its own."""

    step: Literal["parquet"]


def record(row: ResultRow) -> dict[str, Any]:
    """Return the values of SCHEMA of a request."""
    answered = row.status_code == 200
    output, usage = row.output or Output(), responses.usage(row.response)
    error = _error(row)
    metadata = row.body.get("metadata")
    return {
        "line": row.line,
        "custom_id": row.custom_id,
        "model": _text(row.body.get("model")),
        "status_code": row.status_code,
        "text": output.text,
        "reasoning": output.reasoning,
        "tool_calls": _json(list(output.tool_calls) or None),
        "embeddings": (responses.vectors(row.response, row.body) or None) if answered else None,
        "labels": (responses.labels(row.response) or None) if answered else None,
        "scores": (responses.scores(row.response) or None) if answered else None,
        "finish_reason": output.finish_reason,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "seconds": row.seconds,
        "error_code": _text(error.get("code")),
        "error_message": _text(error.get("message")),
        "metadata": _json(metadata),
    }


def _error(row: ResultRow) -> Mapping[str, Any]:
    """Return code and message of a request that failed, or whose answer has no text."""
    return row.failure or {} if row.no_text is None else row.no_text._asdict()


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _json(value)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _block(rows: Iterator[ResultRow]) -> Iterator[dict[str, Any]]:
    size = 0
    for row in itertools.islice(rows, BLOCK_ROWS):
        entry = record(row)
        yield entry
        size += len(entry["text"] or "") + FLOAT_BYTES * sum(map(len, entry["embeddings"] or ()))
        if size >= BLOCK_BYTES:
            return


def parquet(results: Results, options: ParquetOptions) -> None:
    """Write `results.parquet` (SCHEMA; null where a request has no such value).

    `embeddings` are the vectors of all inputs of a line. `tool_calls` and `metadata` are JSON.
    """
    lines = 0
    rows = results.rows()
    with results.create() as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        while block := list(_block(rows)):
            writer.write_table(pa.Table.from_pylist(block, SCHEMA))
            lines += len(block)
    results.add("results.parquet", file.sha256, file.size, lines)


STEP = Step("parquet", "the results as a typed table, one row a request, in input order.", ParquetOptions, parquet)
