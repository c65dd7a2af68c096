"""The children of a composite as they stand: those that run, those that are recorded as ended, those yet to come."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchyard.errors import ArtifactMissing
from batchyard.statuses import TERMINAL
from store.artifacts import Artifacts
from store.formats import job_chunks
from store.jobs import composites
from store.jobs import stages as stage_records
from store.records import Job
from tasks.context import AppContext
from tasks.jobs.finish import NEVER_ENDED


class Entry(NamedTuple):
    """An ended child, as it is recorded. `result` has its `job_id`, null if it never started, and its `metrics`."""

    state: str
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None


class ChildRow(NamedTuple):
    """A child in a list. `job_id` is None if it has not started; `taken` says that the job is an earlier one."""

    key: str
    variant: str
    repeat: int
    round: int
    status: str
    job_id: str | None
    taken: bool
    metrics: Mapping[str, Any]
    problem: str | None


def recorded(context: AppContext, job_id: str) -> dict[str, Entry]:
    """Return the children of a composite that are recorded as ended, by key. Raises UnavailableError."""
    with context.database.read() as session:
        stored = stage_records.chunks(session, job_id, "result")
    return {key: entry for chunk in stored for key, entry in _entries(context.artifacts, chunk.sha256)}


@functools.lru_cache(maxsize=1024)
def _entries(artifacts: Artifacts, sha256: str) -> list[tuple[str, Entry]]:
    rows = job_chunks.read(artifacts, sha256, ["custom_id", "state", "result", "error"]).to_pylist()
    return [
        (row["custom_id"], Entry(row["state"], json.loads(row["result"]), json.loads(row["error"] or "null")))
        for row in rows
    ]


def children(context: AppContext, job: Job) -> list[ChildRow]:
    """Return all children of a composite in their order; none of another job."""
    recipe = context.recipes.recipes.get(job.recipe)
    if recipe is None or recipe.children is None:
        return []
    with context.database.read() as session:
        jobs = composites.children(session, job.id)
    if recipe.cells is not None:
        return [_of_cell(key, child) for key, child in jobs.items()]
    try:
        ends = recorded(context, job.id)
    except ArtifactMissing:  # the composite has ended long ago, and only its artifacts have them
        ends = {}
    unended = NEVER_ENDED[job.status] if job.status in TERMINAL else "pending"
    rows = []
    for child in recipe.children(recipe.options.model_validate(job.options)):
        own, end = jobs.get(child.key), ends.get(child.key)
        if own is None and end is None and job.status == "completed":
            continue
        result = end.result if end is not None else {}
        rows.append(
            ChildRow(
                *(child.key, child.variant, child.repeat, child.round),
                status=own.status if own is not None else result.get("status", unended),
                job_id=own.id if own is not None else result.get("job_id"),
                taken=bool(result.get("taken")),
                metrics=(own.metrics if own is not None else result.get("metrics")) or {},
                problem=(end.error or {}).get("message") if end is not None else None,
            )
        )
    return rows


def _of_cell(key: str, child: Job) -> ChildRow:
    """Return a job of a tune's cell: `round` says which of those that run side by side."""
    variant, repeat, copy = key.rsplit("/", 2)
    problem = next((error["message"] for error in child.errors or ()), None)
    return ChildRow(key, variant, int(repeat), int(copy), child.status, child.id, False, child.metrics or {}, problem)
