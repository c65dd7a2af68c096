"""The progress of a job: `batch_job_status:{id}` in Redis, as for batches, counted in items."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import redis

from batchyard.errors import UnavailableError
from store.jobs.records import Job
from tasks.context import AppContext
from tasks.execution.progress import KEPT_SECONDS, key

log = logging.getLogger(__name__)


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
    try:
        context.redis.set(key(job_id), json.dumps(measure(context, job_id)), ex=KEPT_SECONDS)
    except (redis.RedisError, UnavailableError) as error:
        log.warning("progress not published: %s", error, extra={"job_id": job_id})
