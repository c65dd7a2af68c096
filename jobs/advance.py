"""Advance a job: its kind does what is next, once the job's lease is taken."""

from __future__ import annotations

from jobs import messages
from jobs.kinds.registry import kind_of_job
from store.records import Job
from tasks.context import AppContext
from tasks.heartbeat import hold_job

BUSY_SECONDS = 0.5
"""A message that finds the job's lease taken comes again after so long."""
PAUSE_SECONDS = 2.0
"""Housekeeping wakes a job that nothing has woken for so long."""


def run(context: AppContext, job_id: str, holder: str) -> None:
    """Advance a job that is in progress or being cancelled, if nobody else does."""
    messages.woken(context.redis, job_id)
    with hold_job(context, job_id, holder, PAUSE_SECONDS) as lease:
        if lease is None:
            messages.wake(context.redis, job_id, BUSY_SECONDS)
            return
        with context.database.read() as session:
            job = session.get_one(Job, job_id)
        if job.status in ("in_progress", "cancelling"):
            kind_of_job(context, job).tick(context, lease, job)
