"""The ended items of a job: their results, and the events of the recipe or one that every item has."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa

from batchyard import json_lines
from batchyard.errors import ConflictError, RequestError
from batchyard.recipes import EndedItem, Options, Recipe
from batchyard.statuses import TERMINAL
from results.storage import Storage
from store.artifacts import Artifacts
from store.formats import job_chunks
from store.jobs import chunk_records
from store.records import Job, JobChunk

log = logging.getLogger(__name__)

MOST_NOTIFIED = 1000
"""Items of a job with the option `notify`: each of them is an event of the project, sent to every webhook."""


def of_row(record: Mapping[str, Any]) -> EndedItem:
    """Return the item of a result row, without columns."""
    kept = {name: record[name] for name in ("number", "custom_id", "state", "started_at", "ended_at")}
    error = None if record["error"] is None else json_lines.loads(record["error"])
    return EndedItem(columns={}, result=json_lines.loads(record["result"]), error=error, **kept)


def events_of(recipe: Recipe[Any], options: Options, item: EndedItem) -> Sequence[Mapping[str, Any]]:
    """Return the events of an item, by default `item.<state>`."""
    if recipe.events is not None:
        try:
            return recipe.events(item, options)
        except Exception:
            log.exception("a recipe's events failed", extra={"recipe": recipe.name, "item": item.custom_id})
    ended_at = None if item.ended_at is None else datetime.fromtimestamp(item.ended_at, UTC).isoformat()
    event = {"type": f"item.{item.state}", "custom_id": item.custom_id, "number": item.number, "timestamp": ended_at}
    return [event if item.error is None else {**event, "error": item.error}]


def notifies(options: Options) -> bool:
    return bool(getattr(options, "notify", False))


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
