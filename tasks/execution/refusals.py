"""Refusals: error lines for the requests of a segment that no engine will answer."""

from __future__ import annotations

import threading

import pyarrow as pa

from batchyard.endpoints import output_lines
from store import holds, segments
from tasks.context import AppContext
from tasks.execution.chunk_writer import ChunkWriter
from tasks.execution.result_cache import TOKENS


def reason(context: AppContext, segment: segments.SegmentLease) -> tuple[str, str] | None:
    """Return why no engine will answer the segment's requests, as (code, message); None if one may."""
    if segment.attempts >= context.settings.segment_attempts:
        message = f"The engine could not run this request in {segment.attempts} attempts: {segment.error}"
        return "engine_unavailable", message
    if segment.held is None or not segment.last_chance:
        return None
    if segment.held != holds.UNSERVED:
        message = f"The model could not run before the completion window ended: {segment.held}"
        return "engine_unavailable", message
    if segment.model["name"] not in context.models:
        message = f"The model '{segment.model['name']}' was removed from this deployment before it ran this request."
        return "model_not_found", message
    return None


def refuse(
    context: AppContext, segment: segments.SegmentLease, stopped: threading.Event, rows: pa.Table, *error: str
) -> None:
    """Append an error line with this code and message for each of the requests."""
    writer = ChunkWriter(context, segment, stopped)  # no meter: no engine answers these
    writer.add(_engine_error(rows, *error))
    writer.flush()


def _engine_error(rows: pa.Table, code: str, message: str) -> pa.Table:
    """Return error lines for requests that no engine will answer."""
    answers = output_lines.unanswered(rows["line"].to_pylist(), rows["custom_id"].to_pylist(), code, message)
    none, zeros = [False] * rows.num_rows, pa.array([0] * rows.num_rows, pa.int64())
    columns = {"line": rows["line"], "ok": none, "answer": answers, **dict.fromkeys(TOKENS, zeros), "shared": none}
    columns["reasoning_tokens"] = zeros
    return pa.table(columns | {"seconds": pa.nulls(rows.num_rows, pa.float64())})
