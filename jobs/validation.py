"""Validation of a job: its kind checks what it is given, and writes its items file."""

import logging

from batchyard.telemetry import spans
from jobs import messages, progress
from jobs.catalogue import catalogue_of
from jobs.kinds.registry import kind_of
from store.jobs import lifecycle
from store.records import Job
from store.work import traces
from tasks.context import AppContext
from tasks.heartbeat import hold_job
from tasks.intake.validation import ValidationReport

log = logging.getLogger(__name__)


def run(context: AppContext, job_id: str, holder: str) -> bool:
    """Validate a job and begin it, or end it as failed; False if another worker does, or did."""
    with hold_job(context, job_id, holder, pause=0.0) as lease:
        if lease is None:
            return False
        with context.database.read() as session:
            job = session.get_one(Job, job_id)
        if job.status != "validating":
            return False
        report = ValidationReport()
        recipe = catalogue_of(context).recipe(job.recipe)
        with spans.span("validate", traces.place(job)) as span:
            items_sha256, total = kind_of(recipe).write_items(context, recipe, job, report)
            span.set({"batchyard.errors": report.count})
        with context.database.write() as session:
            lease.release(session)
            if report.count:
                lifecycle.reject(session, job_id, report.errors)
            else:
                lifecycle.validated(session, job_id, items_sha256=items_sha256, total=total, options=job.options)
    log.info("job validated", extra={"job_id": job_id, "errors": report.count, "items": total})
    progress.publish(context, job_id)
    if report.count:
        messages.wake_parent(context.redis, job.parent_id)
    return True
