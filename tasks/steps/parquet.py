"""Step `parquet`: the results as one table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

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


class ParquetOptions(StepOptions):
    """No options of its own."""

    step: Literal["parquet"]


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


def _block(rows: Iterator[ResultRow]) -> Iterator[dict[str, Any]]:
    size = 0
    for row in itertools.islice(rows, BLOCK_ROWS):
        entry = record(row)
        yield entry
        size += len(entry["text"] or "") + FLOAT_BYTES * len(entry["embedding"] or ())
        if size >= BLOCK_BYTES:
            return


def parquet(results: Results, options: ParquetOptions) -> None:
    """Write `results.parquet` (SCHEMA; null where a request has no such value)."""
    lines = 0
    rows = results.rows()
    with results.create() as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        while block := list(_block(rows)):
            writer.write_table(pa.Table.from_pylist(block, SCHEMA))
            lines += len(block)
    results.add("results.parquet", file.sha256, file.size, lines)


STEP = Step("parquet", "the results as a typed table, one row a request, in input order.", ParquetOptions, parquet)
