"""The items of a job of jobs that are recorded as ended."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from store.artifacts import Artifacts
from store.formats import job_chunks
from store.jobs import chunk_records
from tasks.context import AppContext


class RecordedEnd(NamedTuple):
    """The end of a child or cell. `result`: its `job_id`, null if never started, and `metrics`."""

    state: str
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None


def recorded(context: AppContext, job_id: str) -> dict[str, RecordedEnd]:
    """Return the ends of a job's items by key or cell. Raises UnavailableError."""
    with context.database.read() as session:
        stored = chunk_records.of_job(session, job_id, "result")
    return {key: end for chunk in stored for key, end in _entries(context.artifacts, chunk.sha256)}


def row_of_end(
    position: int,
    custom_id: str,
    *,
    completed: bool,
    result: Mapping[str, Any],
    error: Mapping[str, Any] | None,
    started_at: float,
    ended_at: float,
) -> dict[str, Any]:
    """Return the row of results (store.formats.job_chunks) that records such an end. `custom_id`: key or name."""
    return {
        "position": position,
        "number": position + 1,
        "custom_id": custom_id,
        "life": 1,
        "turns": 1,
        "state": "completed" if completed else "failed",
        "result": json.dumps(result),
        "error": None if error is None else json.dumps(error),
        "started_at": started_at,
        "ended_at": ended_at,
    }


@functools.lru_cache(maxsize=1024)
def _entries(artifacts: Artifacts, sha256: str) -> list[tuple[str, RecordedEnd]]:
    rows = job_chunks.read(artifacts, sha256, ["custom_id", "state", "result", "error"]).to_pylist()
    return [
        (row["custom_id"], RecordedEnd(row["state"], json.loads(row["result"]), json.loads(row["error"] or "null")))
        for row in rows
    ]
