"""The ended items of a job: their results and events, as lines of JSON."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson
import pyarrow as pa

from batchyard import json_lines
from batchyard.errors import ConflictError, RequestError
from batchyard.recipes import Recipe
from batchyard.statuses import TERMINAL
from jobs.items.events import events_of, of_row
from results.storage import Storage
from store.artifacts import Artifacts
from store.formats import job_chunks
from store.jobs import chunk_records
from store.records import Job, JobChunk


def lines(storage: Storage, job: Job, after: int, limit: int | None) -> Iterator[bytes]:
    """Return a line of JSON for each ended item, in pieces. Raises RequestError, ConflictError."""

    def line_of(_: int, row: dict[str, Any]) -> bytes:
        for name in ("result", "error"):
            if row[name] is not None:
                row[name] = orjson.Fragment(row[name])
        return json_lines.line(row)

    return _read(storage, job, after, limit, line_of)


def event_lines(storage: Storage, recipe: Recipe[Any], job: Job, after: int, limit: int | None) -> Iterator[bytes]:
    """Return the events of each item of `lines`, in pieces. Raises as `lines`.

    `sequence` is the number of the item's line, from 1: that of the last line, as `after`, reads on.
    """
    options = recipe.options.model_validate(job.options)

    def lines_of(number: int, row: dict[str, Any]) -> bytes:
        if row["state"] in job_chunks.UNENDED:
            return b""
        item_events = events_of(recipe, options, of_row(row))
        return b"".join(json_lines.line({"sequence": number} | dict(event)) for event in item_events)

    return _read(storage, job, after, limit, lines_of)


def _read(
    storage: Storage, job: Job, after: int, limit: int | None, line: Callable[[int, dict[str, Any]], bytes]
) -> Iterator[bytes]:
    stored = result_chunks(storage, job)
    available = sum(chunk.rows for chunk in stored)
    if after > available:
        raise RequestError(f"Invalid 'after': there are {available} lines so far.", code="invalid_value", param="after")
    stop = available if limit is None else min(after + limit, available)
    return (
        b"".join(line(number, row) for number, row in enumerate(table.drop_columns("position").to_pylist(), first))
        for first, table in slices(storage.artifacts, stored, after, stop)
    )


def result_chunks(storage: Storage, job: Job) -> Sequence[JobChunk]:
    """Return the result chunks of a job. Raises ConflictError once collected."""
    with storage.database.read() as session:
        stored = chunk_records.of_job(session, job.id, "result")
    if job.status in TERMINAL and not stored and job.completed + job.failed + job.stuck:
        raise collected(job)
    return stored


def collected(job: Job) -> ConflictError:
    return ConflictError(
        f"Job '{job.id}' has ended, and its results are in its artifacts now.", code="results_in_files", param="job_id"
    )


def slices(
    artifacts: Artifacts, stored: Sequence[JobChunk], start: int, stop: int, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, pa.Table]]:
    before = 0
    for chunk in stored:
        begin, end = max(start - before, 0), min(stop - before, chunk.rows)
        if begin < end:
            table = job_chunks.read(artifacts, chunk.sha256, columns)
            yield before + begin + 1, table.slice(begin, end - begin)
        before += chunk.rows
