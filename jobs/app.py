"""The Celery tasks of jobs: each is one call."""

from __future__ import annotations

from celery import Task

from jobs.advance import run
from tasks import advance
from tasks.celery_app import app
from tasks.context import context
from tasks.heartbeat import holder


@app.task(name="job.validate", bind=True)
def validate_job(task: Task, job_id: str) -> None:
    advance.validate_next(context(), ("job", job_id), holder(task.request.id))


@app.task(name="job.advance", bind=True)
def advance_job(task: Task, job_id: str) -> None:
    run(context(), job_id, holder(task.request.id))


@app.task(name="job.finish", bind=True)
def finish_job(task: Task, job_id: str) -> None:
    advance.finish_next(context(), ("job", job_id), holder(task.request.id))
