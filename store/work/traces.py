"""Traces: the span of a batch or a job, written when it has ended."""

import time

from sqlalchemy import event
from sqlalchemy.orm import Session

from batchyard.telemetry import spans, traceparents
from batchyard.telemetry.spans import EndedSpan, Value
from batchyard.telemetry.traceparents import TraceParent
from store.records import Batch, Job


def place(work: Batch | Job) -> TraceParent:
    """Return the span of a batch or a job, below which is all that happens to it."""
    return traceparents.of_work(work.id, work.traceparent)


def write_end(session: Session, work: Batch | Job, status: str) -> None:
    """Write the span of work whose end this transaction commits, from its creation until now."""
    if not spans.enabled():
        return
    parent = traceparents.stored(work.traceparent)
    error = status if status in ("failed", "expired") else None
    attributes = {**_attributes(work), "batchyard.status": status}
    name = "batch" if isinstance(work, Batch) else "job"
    # From the id: `created_at` has whole seconds, as OpenAI's objects do.
    created = int(work.id.partition("_")[2][:14], 16) * 1000
    span = EndedSpan(name, place(work), parent, created, time.time_ns(), attributes, error)
    event.listen(session, "after_commit", lambda _: spans.write(span), once=True)


def _attributes(work: Batch | Job) -> dict[str, Value]:
    counts: dict[str, Value] = {
        "batchyard.project.id": work.project_id,
        "batchyard.models": sorted(work.models),
        "batchyard.total": work.total,
        "batchyard.completed": work.completed,
        "batchyard.failed": work.failed,
    }
    if isinstance(work, Job):
        return counts | {"batchyard.job.id": work.id, "batchyard.recipe": work.recipe, "batchyard.stuck": work.stuck}
    of_batch: dict[str, Value] = {
        "batchyard.batch.id": work.id,
        "batchyard.endpoint": work.endpoint,
        "gen_ai.usage.input_tokens": work.input_tokens,
        "gen_ai.usage.output_tokens": work.output_tokens,
    }
    if work.stage:
        of_batch["batchyard.stage"] = work.stage
    return counts | of_batch
