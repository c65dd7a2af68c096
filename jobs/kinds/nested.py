"""What jobs of jobs have in common: drafts of the jobs that they start, commits of their ticks, and recorded ends.

The jobs that they start answer rows.
"""

import functools
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from batchyard.errors import RequestError
from batchyard.recipes import Child, FlowRecipe, Recipe
from jobs import messages, progress
from jobs.catalogue import catalogue_of
from jobs.intake.drafts import Configuration, JobDraft, Submission, configured
from jobs.kinds.flow import FLOW
from jobs.running.records import Change, as_table
from store.artifacts import Artifacts
from store.formats import job_chunks
from store.jobs import chunk_records, composites, lifecycle
from store.leases import Lease
from store.records import Job
from store.work import traces
from tasks.context import AppContext

log = logging.getLogger(__name__)

_OF_PARENT = ("project_id", "completion_window", "output_expires_after", "expires_at", "due_at")


class ChildInput(NamedTuple):
    file_id: str | None
    sha256: str
    name: str


def check(context: AppContext, recipe_name: str, values: Mapping[str, Any], completion_window: str) -> Configuration:
    """Return what a child runs. Raises RequestError."""
    recipe = flow_recipe(catalogue_of(context).recipe(recipe_name))
    return FLOW.check(context, recipe, Submission(values, completion_window))


def flow_recipe(recipe: Recipe[Any]) -> FlowRecipe[Any]:
    """Return the recipe of a child. Raises RequestError for jobs of jobs."""
    if not isinstance(recipe, FlowRecipe):
        message = f"Recipe '{recipe.name}' starts jobs itself, so it cannot be that of a child."
        raise RequestError(message, code="invalid_value", param="options.recipe")
    return recipe


def draft(context: AppContext, parent: Job, child: Child, source: ChildInput) -> JobDraft:
    """Prepare a job that another one starts, within that one's window. Raises RequestError."""
    configuration = check(context, child.recipe, child.options, parent.completion_window)
    job = Job(
        **{name: getattr(parent, name) for name in _OF_PARENT},
        name=child.key,
        seed=parent.seed + child.repeat,
        input_file_id=source.file_id,
        input_sha256=source.sha256,
        input_name=source.name,
        post_process=[],
        parent_id=parent.id,
        traceparent=str(traces.place(parent)) if parent.id else None,  # a dry run has no job
        child_key=child.key,
        variant=child.variant,
    )
    return configured(context, job, None, configuration)


class Tick:
    """A tick of a job whose items are jobs: what it knows, and the rows and drafts that it decides.

    `jobs` are those that it has started, oldest first, by key; `ends` the recorded ends of its items.
    """

    of_cells: ClassVar[bool] = False
    """True if an item has several jobs, and its id is their variant; else it is the key of its job."""

    def __init__(self, context: AppContext, lease: Lease, job: Job) -> None:
        self.context, self.lease, self.job = context, lease, job
        with context.database.read() as session:
            self.jobs = composites.children(session, job.id)
        self.ends = recorded(context, job.id)
        self.rows: list[Change] = []
        self.drafts: list[JobDraft] = []

    def end(
        self, position: int, key: str, result: Mapping[str, Any], error: Mapping[str, Any] | None, *times: float
    ) -> None:
        """Add the row of results of an item, which failed with an `error`. `times` are those of start and end."""
        state = "completed" if error is None else "failed"
        texts = json.dumps(result), None if error is None else json.dumps(error)
        self.rows.append(Change(position, position + 1, key, state, 1, 1, *texts, *times))

    def _items(self, jobs: Iterable[Job]) -> set[str]:
        return {str(job.variant if self.of_cells else job.child_key) for job in jobs}

    def commit(self, *, ending: bool = False, items: tuple[str, int] | None = None) -> None:
        """Write what was decided, in one transaction. Raises LeaseLost: another process has the job.

        At an `ending`, the items that have not ended are left out. `items` are SHA-256 and length of a new items file.
        """
        context, lease, job, rows = self.context, self.lease, self.job, self.rows
        sha256 = job_chunks.write(context.artifacts, as_table(rows, job_chunks.RESULT)) if rows else ""
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
                record.completed += sum(row.state == "completed" for row in rows)
                record.failed += sum(row.state == "failed" for row in rows)
                taken = sum(json.loads(row.result)["taken"] for row in rows)
                if taken:
                    record.counters = dict(Counter(record.counters) + Counter(taken=taken))
                if record.paused_at is None:
                    new = [lifecycle.create(session, draft.job) for draft in self.drafts]
                begun = self.ends.keys() | {row.custom_id for row in rows} | self._items([*self.jobs.values(), *new])
                record.admitted = max(record.admitted, min(len(begun), record.total))
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
            progress.count_items(context, job.recipe, Counter(row.state for row in rows), counters)
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


@functools.lru_cache(maxsize=1024)
def _entries(artifacts: Artifacts, sha256: str) -> list[tuple[str, RecordedEnd]]:
    rows = job_chunks.read(artifacts, sha256, ["custom_id", "state", "result", "error"]).to_pylist()
    return [
        (row["custom_id"], RecordedEnd(row["state"], json.loads(row["result"]), json.loads(row["error"] or "null")))
        for row in rows
    ]
