"""The progress of a job: `batch_job_status:{id}` in Redis, as for batches, counted in items."""

from __future__ import annotations

import time
from typing import Any

from batchyard.recipes import Check, Score
from store.jobs.records import Job
from tasks.context import AppContext
from tasks.execution import progress
from tasks.scheduling import deadlines


def measure(context: AppContext, job_id: str) -> dict[str, Any]:
    """Return the progress of a job, in the form that is published."""
    with context.database.read() as session:
        job = session.get_one(Job, job_id)
    now = time.time()
    expected = deadlines.read(context, [job_id]).get(job_id) if job.status == "in_progress" else None
    return {
        "status": job.status,
        "recipe": job.recipe,
        "total": job.total,
        "completed": job.completed,
        "failed": job.failed,
        "stuck": job.stuck,
        "waiting_for_verdict": job.waiting_for_verdict,
        "expired": job.expired_items,
        "cancelled": job.cancelled_items,
        "eta_seconds": None if expected is None else max(0.0, expected.at - now),
        "sla": job.sla,
        "updated_at": now,
    }


def count_failed_judgement(context: AppContext, call: Score | Check) -> None:
    """Count a call that failed in a process of its own, by the name of its reward or gate, for /metrics."""
    progress.count(context, call.reward if isinstance(call, Score) else call.gate, {progress.JUDGEMENT_ERRORS: 1})


def publish(context: AppContext, job_id: str) -> None:
    """Write a job's progress to Redis. Log a warning if Redis or the database is away."""
    progress.write(context, job_id, measure)
