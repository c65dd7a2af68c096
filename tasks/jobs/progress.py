"""The progress of a job: `batch_job_status:{id}` in Redis, as for batches, counted in items."""

from __future__ import annotations

import time
from typing import Any

from store.jobs.records import Job
from tasks.context import AppContext
from tasks.execution import progress


def measure(context: AppContext, job_id: str) -> dict[str, Any]:
    """Return the progress of a job, in the form that is published."""
    with context.database.read() as session:
        job = session.get_one(Job, job_id)
    return {
        "status": job.status,
        "recipe": job.recipe,
        "total": job.total,
        "completed": job.completed,
        "failed": job.failed,
        "stuck": job.stuck,
        "sla": job.sla,
        "updated_at": time.time(),
    }


def publish(context: AppContext, job_id: str) -> None:
    """Write a job's progress to Redis. Log a warning if Redis or the database is away."""
    progress.write(context, job_id, measure)
