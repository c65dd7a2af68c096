"""What a tick has decided becomes the job's records, in one transaction."""

import time
from collections import Counter

import pyarrow as pa
from sqlalchemy.orm import Session

from batchyard.recipes import Stage
from jobs.running import notices, segments
from jobs.running.memory import LiveJob
from jobs.running.records import as_table
from store import events
from store.accounting import stopping
from store.formats import job_chunks
from store.jobs import chunk_records, lifecycle, replies
from store.jobs import stages as stage_records
from store.leases import Lease
from store.records import ChunkKind, Job, JobStage
from tasks.context import AppContext


class JobEnding(Exception):
    """The job is cancelled or its window has passed since the tick began: nothing of it is committed."""


def commit(
    context: AppContext, lease: Lease, live: LiveJob, cuts: list[segments.Cut], *, done: bool, sampled: bool = False
) -> bool:
    """Commit what the tick has decided. True if all items have ended. Raises LeaseLost, JobEnding.

    `sampled`: the items of the sample have ended, so the job is paused.
    """
    job, items, new = live.job, live.items, live.items.uncommitted
    planned = segments.write(context.artifacts, cuts)
    tables: list[tuple[ChunkKind, pa.Table]] = [
        ("result", as_table([*new.moved, *new.ended], job_chunks.RESULT)),
        ("judgement", as_table(new.outcomes, job_chunks.JUDGEMENT)),
    ]
    new_chunks: list[tuple[ChunkKind, str, int]] = [
        (kind, job_chunks.write(context.artifacts, table), table.num_rows) for kind, table in tables if table.num_rows
    ]
    states = Counter(ended.state for ended in new.ended)
    item_events = notices.of_project(live.recipe, live.options, new.ended)
    specs = live.recipe.stages_of(live.options)
    with context.database.write() as session:
        lease.guard(session)
        record = session.get_one(Job, job.id)
        if record.status != "in_progress" or record.outcome is not None:
            raise JobEnding
        existing = {stage.name: stage for stage in stage_records.of_job(session, job.id)} if cuts else {}
        for number, stage in enumerate(specs):
            of_stage = [segment for cut, segment in zip(cuts, planned, strict=True) if cut.stage == stage.name]
            if of_stage:
                stage_records.extend(session, _batch_of(session, record, number, stage, existing), of_stage)
        for kind, sha256, rows in new_chunks:
            chunk_records.add(session, job.id, kind, sha256, rows)
        for event in item_events:
            events.record(session, record, event.pop("type"), **event)
        record.admitted = live.admitted
        record.completed += states["completed"]
        record.failed += states["failed"] - new.reopened["failed"]
        record.stuck += states["stuck"] - new.reopened["stuck"]
        record.waiting_for_verdict = len(items.waiting)
        record.reused += new.reused
        record.restarted += new.restarted
        record.attempts, record.attempt_error = 0, None
        record.ahead = items.outlook(job.total - live.admitted)
        if new.counters:
            record.counters = dict(Counter(record.counters) + Counter(new.counters))
        for type_, data in live.notices.due(items, record.stuck, time.time()):
            events.record(session, record, type_, **data)
        if sampled:
            lifecycle.pause_sampled(session, record)
        elif not done:
            stopping.check_job(session, record)
        done = done and not replies.after(session, job.id, live.reply_id)
        if done:
            for sealed in stage_records.of_job(session, job.id):
                if sealed.batch_id is not None:
                    stage_records.seal(session, sealed.batch_id)
            lifecycle.transition(session, job.id, "in_progress", "finalizing", outcome="completed")
    live.job = record
    return done


def _batch_of(session: Session, job: Job, number: int, stage: Stage, existing: dict[str, JobStage]) -> str:
    """Return the id of a stage's batch; create it if `existing`, by name, has none."""
    known = existing.get(stage.name)
    if known is not None and known.batch_id is not None:
        return known.batch_id
    taken = {other.number for name, other in existing.items() if name != stage.name}
    if number in taken:  # the recipe's file has changed, and so have the numbers of its stages
        number = max(taken) + 1
    batch = stage_records.open_batch(session, job, number, stage.name, stage.endpoint)
    existing.update({stage.name: stage for stage in stage_records.of_job(session, job.id)})
    return batch.id
