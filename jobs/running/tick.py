"""One tick of a job: answers go to items, and their next requests into segments.

All that a tick decides is committed in one transaction, which the epoch of the job's lease guards. If it fails, memory
is built again from the records.
"""

import functools
import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from batchyard.recipes import Call, Called
from jobs import messages, progress
from jobs.running.commit import JobEnding, commit
from jobs.running.judging import Verdict, has_failed
from jobs.running.live_item import PendingCall, ToJudge
from jobs.running.memory import LiveJob, LiveJobs
from jobs.running.programs import NotDeterministic, WatchStep
from jobs.running.rebuild import RecipeHangs, item_of, rebuilt, size_of, take_reply
from jobs.running.watchdog import watchdog
from jobs.stage_records import answers
from store.formats import items as items_file
from store.jobs import chunk_records, lifecycle, replies
from store.jobs import stages as stage_records
from store.leases import Lease
from store.records import Job
from tasks.context import AppContext
from tasks.finishing import finalize
from tasks.scheduling import dispatch

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
"""Ticks of one job begin at least so far apart: what comes meanwhile is taken together."""
WAITING_SECONDS = 60.0
"""It wakes a job that only waits for verdicts after so long: a reply wakes it, too."""
READ_ITEMS = 64
"""Items that are read at once; those that do not begin yet are read again."""
ENDED_ITEMS = 10_000
"""Most items that begin in one tick and end at once: they are in memory until the tick commits them."""


def run(context: AppContext, lease: Lease, job: Job, jobs: LiveJobs) -> None:
    """Advance a job that is in progress, or stop one that is being cancelled. Raises LeaseLost, UnavailableError."""
    try:
        if job.status == "cancelling" or job.outcome is not None:
            jobs.drop(job.id)
            jobs.tools(context).forget_all(job.id)
            _stop(context, lease, job)
        else:
            with watchdog(context.settings.judge_seconds).tick(job.id, lease.epoch) as watch:
                _tick(context, lease, job, jobs, watch)
    except (NotDeterministic, RecipeHangs) as error:
        jobs.drop(job.id)
        log.error("job failed: %s", error, extra={"job_id": job.id})
        errors = [{"code": error.code, "line": None, "message": str(error), "param": None}]
        _stop(context, lease, job, outcome="failed", errors=errors)
    except JobEnding:
        jobs.drop(job.id)
        messages.wake(context.redis, job.id, 0.0)
    except BaseException:
        jobs.drop(job.id)
        raise


def _tick(context: AppContext, lease: Lease, job: Job, jobs: LiveJobs, watch: WatchStep) -> None:
    started_at = time.monotonic()
    live = jobs.get(job.id, lease) or rebuilt(context, job, watch, jobs.tools(context))
    starving = dict.fromkeys(live.starving, started_at - live.at)
    live.epoch, live.at, live.items.programs.watch = lease.epoch, started_at, watch
    jobs.keep(live)
    _receive(context, live)
    last = (job.sample_rows or 0) if job.sampling else job.total
    has_more = _admit(context, live, last)
    items, new = live.items, live.items.uncommitted
    if live.options.streaming:
        cuts = live.cutter.cuts(items.requests, live.lines, started_at)
    else:
        cuts = [] if items.waits() else live.cutter.all(items.requests, live.lines)
    done = live.admitted == job.total and not len(items)
    rests = job.sampling and live.admitted == last and len(items) == len(items.waiting)
    sampled = rests and job.paused_at is None
    live.notices.add(items)
    changed = bool(cuts or new.ended or new.moved or new.outcomes or done or live.admitted != job.admitted or sampled)
    if changed or live.notices.next_in(time.time()) == 0.0:
        done = commit(context, lease, live, cuts, done=done, sampled=sampled)
        job = live.job
        progress.count_items(context, job.recipe, Counter(ended.state for ended in new.ended), new.counters)
        for cut in cuts:
            items.requests.issue(cut.requests, cut.first_line)
        for key in new.called:
            jobs.tools(context).forget(key)
        items.clear_committed()
    _start_calls(context, live, jobs)
    live.starving = live.cutter.starving(items.requests)
    if cuts:
        dispatch.run(context)
    if changed:
        progress.publish(context, job.id)
    if done:
        jobs.drop(job.id)
        log.info("all items have ended", extra={"job_id": job.id})
        _release(context, lease)
        finalize.start_ready(context)
    elif has_more:
        messages.wake(context.redis, job.id)
    else:
        _wake_again(context, lease, live, job, rests=rests)
    jobs.evict_others(job.id)
    progress.count_tick(context, time.monotonic() - started_at, starving)


def _wake_again(context: AppContext, lease: Lease, live: LiveJob, job: Job, *, rests: bool) -> None:
    """Have the next tick made in time, if no answer wakes the job before.

    `job`: its record as this tick knows it. `rests`: it waits for a resume.
    """
    items, job_id = live.items, job.id
    if live.verdicts or (not live.options.streaming and items.requests.pending().total() and not items.waits()):
        messages.wake(context.redis, job_id, TICK_SECONDS)
        return
    wait = live.cutter.next_in(items.requests, time.monotonic())
    if wait is not None:
        messages.wake(context.redis, job_id, max(wait, TICK_SECONDS))
    elif rests or (items.waiting and len(items.waiting) == len(items)):
        notice = live.notices.next_in(time.time())
        _release(context, lease, WAITING_SECONDS if notice is None else notice, unless_changed=job)


def _receive(context: AppContext, live: LiveJob) -> None:
    while live.verdicts:
        live.items.judge(*live.verdicts.popleft())
    with context.database.read() as session:
        new = {
            stage.name: chunk_records.of_batch(session, stage.batch_id, live.cursors.get(stage.name, 0))
            for stage in stage_records.of_job(session, live.job.id)
            if stage.batch_id is not None
        }
    for stage, stage_chunks in new.items():
        for chunk_id, sha256 in stage_chunks:
            for line, answer, seconds in answers(context.artifacts, [sha256]):
                live.items.answer(stage, line, answer, seconds)
            live.cursors[stage] = chunk_id
    with context.database.read() as session:
        new_replies = replies.after(session, live.job.id, live.reply_id)
    for reply in new_replies:
        live.reply_id = reply.id
        take_reply(live, reply)


def _rows_from(reader: items_file.Reader, first: int) -> Iterator[items_file.StoredItem]:
    while rows := reader.read(first, READ_ITEMS):
        yield from rows
        first += len(rows)


def _admit(context: AppContext, live: LiveJob, last: int) -> bool:
    """Begin items, the first `last`, while the engines may need their requests. One is always live.

    Returns True if it stopped because too many have ended at once, or too large ones. Without streaming it takes all:
    the stages are whole batches.
    """
    items, limit = live.items, live.cutter.capacity()
    window, streaming, new = context.settings.job_window_bytes, live.options.streaming, live.items.uncommitted
    most_ended, most_bytes = len(new.ended) + ENDED_ITEMS, new.ended_bytes + window

    def enough() -> bool:
        if not streaming or not len(items):
            return False
        return items.requests.total() >= limit or items.bytes >= window

    rows = _rows_from(live.reader, live.admitted)
    while live.admitted < last and not enough() and (row := next(rows, None)) is not None:
        if streaming and (len(new.ended) >= most_ended or new.ended_bytes >= most_bytes):
            return True
        items.begin(row.position, item_of(live.job, live.options, row), size_of(row))
        live.admitted = row.position + 1
    return False


def _start_calls(context: AppContext, live: LiveJob, jobs: LiveJobs) -> None:
    """Start judgements, and calls of tools: none of these before its beginning is committed."""

    def note(call: PendingCall, outcome: Verdict | Called) -> None:
        live.verdicts.append((call.position, call.turn, call.index, outcome))
        messages.wake(context.redis, live.job.id, TICK_SECONDS)

    judged: list[tuple[PendingCall, ToJudge]] = []
    for call in live.items.take_calls():
        if isinstance(call.call, Call):
            done = functools.partial(note, call)
            tools = jobs.tools(context)
            tools.submit(live.job.id, call.key, call.call, is_retriable=call.is_retriable, done=done)
        else:
            judged.append((call, call.call))

    def take(index: int, verdict: Verdict) -> None:
        call, judgement = judged[index]
        if has_failed(verdict):
            progress.count_failed_judgement(context, judgement)
        note(call, verdict)

    if judged:
        jobs.judges(context).submit([(judgement, call.item) for call, judgement in judged], take)


def _stop(context: AppContext, lease: Lease, job: Job, **values: Any) -> None:
    """End the batches of a job that is cancelled, expired or failed. Answers stay."""
    with context.database.write() as session:
        lease.guard(session)
        stage_records.cancel_batches(session, job.id)
        record = session.get_one(Job, job.id)
        record.cancelled_items = record.unended
        if record.status == "in_progress":
            lifecycle.transition(session, job.id, "in_progress", "finalizing", **values)
    _release(context, lease)
    log.info("job stopped", extra={"job_id": job.id, "status": job.status, "outcome": values.get("outcome")})
    progress.publish(context, job.id)


def _release(context: AppContext, lease: Lease, pause: float = 0.0, unless_changed: Job | None = None) -> None:
    """Give the lease back without a tick's pause: the end of the last batch finishes the job.

    `unless_changed`: without a pause if this job was resumed or cancelled meanwhile, since a holder is not hastened.
    """
    with context.database.write() as session:
        lease.release(session, pause, attempts=0, attempt_error=None)
        if unless_changed is not None:
            lifecycle.hasten_changed(session, unless_changed)
