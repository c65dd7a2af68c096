"""The Celery tasks of jobs, and the one that advances a job: its kind does what is next, once its lease is taken."""

from celery import Task

from jobs import messages
from jobs.kinds.registry import kind_of_job
from store.records import Job
from tasks import advance
from tasks.celery_app import app
from tasks.context import AppContext, context
from tasks.heartbeat import hold_job, holder
from tasks.messages import send_again

BUSY_SECONDS = 0.5
"""A message that finds the job's lease taken comes again after so long."""
PAUSE_SECONDS = 2.0
"""Housekeeping wakes a job that nothing has woken for so long."""


def advance_leased(context: AppContext, job_id: str, holder: str) -> None:
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
        else:  # after a pause it would look as if a message to finish it had been sent, though its batches still run
            with context.database.write() as session:
                lease.release(session)


@app.task(name="job.validate", bind=True)
def validate_job(task: Task, job_id: str) -> None:
    advance.validate_next(context(), ("job", job_id), holder(task.request.id), lambda: send_again(task))


@app.task(name="job.advance", bind=True)
def advance_job(task: Task, job_id: str) -> None:
    advance_leased(context(), job_id, holder(task.request.id))


@app.task(name="job.finish", bind=True)
def finish_job(task: Task, job_id: str) -> None:
    advance.finish_next(context(), ("job", job_id), holder(task.request.id), lambda: send_again(task))
