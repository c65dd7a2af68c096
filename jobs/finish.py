"""Finishing a job: its artifacts, and its end."""

import logging
import tempfile
from pathlib import Path

from batchyard.recipes import Report
from batchyard.statuses import NEVER_ENDED, TERMINAL
from batchyard.telemetry import spans
from jobs import messages, progress
from jobs.finishing import artifacts
from jobs.finishing.results import JobResults
from jobs.kinds.registry import kind_of_job
from jobs.stage_records import records_of
from store.jobs import chunk_records, lifecycle, replies
from store.records import Job
from store.work import traces
from tasks.context import AppContext
from tasks.heartbeat import hold_job
from tasks.steps import registry

log = logging.getLogger(__name__)


def run(context: AppContext, job_id: str, holder: str) -> bool:
    """Write a job's artifacts, anew if an item was resolved, and end it. False if another worker does, or did."""
    with hold_job(context, job_id, holder, context.settings.queue_seconds) as lease:
        if lease is None:
            return False
        with context.database.read() as session:
            job = session.get_one(Job, job_id)
            chunks = chunk_records.of_job(session, job_id)
            stages = records_of(session, job_id)
            item_replies = replies.after(session, job_id, 0)
        if job.status not in ("finalizing", "cancelling") and not (job.status in TERMINAL and job.unwritten):
            return False
        outcome = "cancelled" if job.status == "cancelling" else job.outcome or "completed"
        outcome = job.status if job.status in TERMINAL else outcome
        log.info("finishing", extra={"job_id": job_id, "outcome": outcome})
        with (
            spans.span("merge", traces.place(job)),
            tempfile.TemporaryFile(prefix="batchyard-job-") as file,
            tempfile.TemporaryDirectory(prefix="batchyard-job-") as folder,
        ):
            results = [chunk.sha256 for chunk in chunks if chunk.kind == "result"]
            ended = JobResults(context, job, results, NEVER_ENDED[outcome], file, Path(folder))
            if job.total and kind_of_job(context, job).has_journal:
                judgements = [chunk.sha256 for chunk in chunks if chunk.kind == "judgement"]
                ended.add_journal(stages, judgements, item_replies)
            report = artifacts.report_of(context, job, ended) if job.total else Report()
            artifacts.write_common(ended, job, report)
            steps = job.post_process
            if job.total and outcome != "cancelled":  # then the client wants no more work on it
                steps = [artifacts.run_step(context.artifacts, ended, job, registry.request(entry)) for entry in steps]
            warnings = [*report.warnings, *artifacts.write_manifest(context, ended, job, outcome)]
        with context.database.write() as session:
            lease.guard(session)
            record = session.get_one(Job, job_id)
            if record.status != job.status:
                return False  # a cancellation has won; its message does this again
            record.metrics = dict(report.metrics)
            record.report = ended.status | ({"warnings": warnings} if warnings else {})
            record.post_process = steps
            record.expired_items = record.unended if outcome == "expired" else 0
            record.cancelled_items = record.unended if outcome != "expired" else 0
            record.waiting_for_verdict = 0
            record.unwritten -= job.unwritten
            if job.status == outcome or lifecycle.transition(session, job_id, job.status, outcome):
                lease.release(session, attempts=0, attempt_error=None)
                for name, (sha256, size, lines) in ended.artifacts.items():
                    lifecycle.add_artifact(session, record, name, sha256, size, lines)
    if job.status not in TERMINAL:
        ends = {"expired": record.expired_items, "cancelled": record.cancelled_items}
        progress.count_items(context, job.recipe, {state: number for state, number in ends.items() if number}, {})
    log.info("job ended", extra={"job_id": job_id, "status": outcome})
    progress.publish(context, job_id)
    messages.wake_parent(context.redis, job.parent_id)
    return True
