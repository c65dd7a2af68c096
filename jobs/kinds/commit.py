"""What a tick of a job of jobs has decided becomes its records, in one transaction; and its items that have ended."""

import functools
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import pyarrow as pa

from jobs import messages, progress
from jobs.intake.drafts import JobDraft
from store.artifacts import Artifacts
from store.formats import job_chunks
from store.jobs import chunk_records, lifecycle
from store.leases import Lease
from store.records import Job
from tasks.context import AppContext

log = logging.getLogger(__name__)


def commit(
    context: AppContext,
    lease: Lease,
    job: Job,
    rows: Sequence[Mapping[str, Any]],
    drafts: Sequence[JobDraft],
    *,
    ending: bool,
    begun: Set[str],
    cells: bool = False,
    items: tuple[str, int] | None = None,
) -> None:
    """Write what a tick has decided, in one transaction. Raises LeaseLost: another process has the composite.

    At an `ending`, the items that have not ended are left out. With `cells`, an item has several jobs, and its id is
    their variant; else it is the key of its job. `items` are SHA-256 and length of a new items file.
    """
    table = pa.Table.from_pylist(list(rows), job_chunks.RESULT)
    sha256 = job_chunks.write(context.artifacts, table) if rows else ""
    new: list[Job] = []
    with context.database.write() as session:
        lease.guard(session)
        record = session.get_one(Job, job.id)
        changed = (record.status, record.outcome) != (job.status, job.outcome)
        if not changed:
            if items is not None:
                record.items_sha256, record.total = items
            if rows:
                chunk_records.add(session, job.id, "result", sha256, len(rows))
            record.completed += sum(row["state"] == "completed" for row in rows)
            record.failed += sum(row["state"] == "failed" for row in rows)
            taken = sum(json.loads(row["result"])["taken"] for row in rows)
            if taken:
                record.counters = dict(Counter(record.counters) + Counter(taken=taken))
            if record.paused_at is None:
                new = [lifecycle.create(session, draft.job) for draft in drafts]
            all_begun = {
                *begun,
                *(str(row["custom_id"]) for row in rows),
                *(str(child.variant if cells else child.child_key) for child in new),
            }
            record.admitted = max(record.admitted, min(len(all_begun), record.total))
            session.flush()
            if ending:
                record.cancelled_items = record.unended
            done = ending or record.completed + record.failed == record.total
            if done and record.status == "in_progress":
                values = {} if ending else {"outcome": "completed"}
                lifecycle.transition(session, job.id, "in_progress", "finalizing", **values)
            if done:
                lease.release(session, attempts=0, attempt_error=None)
    for child in new:
        messages.validate(child.id, child.name or child.child_key)
        log.info("child started", extra={"job_id": child.id, "parent_id": job.id, "key": child.child_key})
    if not changed:
        counters = {"taken": taken} if taken else {}
        progress.count_items(context, job.recipe, Counter(row["state"] for row in rows), counters)
    progress.publish(context, job.id)
    if not lease.held:
        messages.finish_ready(context)
    elif rows or changed:  # what was recorded may let others start, and what has changed may end it
        messages.wake(context.redis, job.id)


class RecordedEnd(NamedTuple):
    """The end of a child or cell. `result` has `job_id` and `metrics`."""

    state: str
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None


def recorded(context: AppContext, job_id: str) -> dict[str, RecordedEnd]:
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
    """Return the row of results of an end. `custom_id`: key or name."""
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
