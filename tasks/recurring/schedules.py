"""Schedules: a tick claims each scheduled time as it creates its batch or job, so ticks may be concurrent or die."""

import logging
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import redis

from batchyard import cron
from batchyard.cron import Cron
from batchyard.errors import ConflictError, UnavailableError
from store import schedules
from store.records import Schedule, ScheduleRun, now
from store.schedules import CatchUp
from tasks.context import AppContext
from tasks.intake.submission import Draft
from tasks.port import CheckedJob
from tasks.recurring import run_templates, runs, watching

log = logging.getLogger(__name__)

# Schedules per tick: about as many as run before the next tick (9 ms each on SQLite), which continues.
AT_ONCE = 200
# `catch_up: all` runs at most this many of the missed times, the last ones.
MAX_CAUGHT_UP = 100
# A time that is longer ago is missed.
LATE_SECONDS = 60
# A run waits this long for an artifact store that is away, or another error to end, then fails.
PATIENCE_SECONDS = 600
BUCKETS = "batchyard:buckets"
"""The Redis key that is there while a process runs schedules that read buckets."""
# Of one tick; the last schedule or object that it begins may take longer (imports.SECONDS).
BUCKETS_SECONDS = 60.0
BUCKETS_LOCK_SECONDS = 300


@dataclass(frozen=True)
class ScheduledTime:
    """The time that a tick runs of a schedule, or skips as `missed`, and the schedule's next time after it.

    `missed_from` is the first of the times before `time` that are skipped.
    """

    time: int
    following: int | None
    missed_from: int | None
    missed: bool


def scheduled_time(cron: Cron, catch_up: CatchUp, first: int, at: int) -> ScheduledTime:
    """Return the time to run at Unix time `at` of a schedule that is due since `first`."""
    times = cron.last(first, at, MAX_CAUGHT_UP if catch_up == "all" else 1)
    time = times[0] if times else first
    return ScheduledTime(
        time=time,
        following=cron.next(time if catch_up == "all" else at),
        missed_from=first if first < time else None,
        missed=catch_up == "none" and at - time > LATE_SECONDS,
    )


def run_due(context: AppContext, at: int) -> None:
    """Run one time of each schedule due at Unix time `at`; a failure delays no other."""
    with context.database.read() as session:
        due = schedules.due_in_turn(session, at, AT_ONCE)
    from_buckets = [schedule for schedule in due if schedule.input["kind"] in ("url", "watch")]
    for schedule in due:
        if schedule not in from_buckets:
            _run(context, schedule, at, math.inf)
    if not from_buckets:
        return
    try:
        # Buckets may be slow: one process reads them, and the others validate and finish batches.
        if not context.redis.set(BUCKETS, 1, nx=True, ex=BUCKETS_LOCK_SECONDS):
            return
    except redis.RedisError as error:
        log.warning("several processes may read buckets: %s", error)
    try:
        ends_at = time.monotonic() + BUCKETS_SECONDS
        for schedule in from_buckets:
            if time.monotonic() < ends_at:
                _run(context, schedule, at, ends_at)
    finally:
        with suppress(redis.RedisError):
            context.redis.delete(BUCKETS)


def _run(context: AppContext, schedule: Schedule, at: int, ends_at: float) -> None:
    try:
        if schedule.input["kind"] == "watch":
            watching.run(context, schedule, at, ends_at)
        else:
            run_one(context, schedule, at)
    except Exception:
        log.exception("a schedule could not be run", extra={"schedule_id": schedule.id})
        if at - (schedule.next_run_at or at) < PATIENCE_SECONDS:
            return  # it stays due
        with suppress(UnavailableError), context.database.write() as session:
            later = at + PATIENCE_SECONDS  # not its next time, which may be what cannot be read
            if schedules.claim(session, schedule, later) and not schedules.has_run(session, schedule, at):
                reason = "It could not be run, for a reason that is in the housekeeper's log; it is tried again."
                schedules.add_run(session, schedule, "failed", reason=reason, scheduled_at=at)


def run_one(context: AppContext, schedule: Schedule, at: int) -> None:
    times = cron.parse(schedule.cron, schedule.timezone)
    current = scheduled_time(times, cast(CatchUp, schedule.catch_up), schedule.next_run_at or at, at)
    prepared: Draft | CheckedJob | runs.Outcome
    if current.missed:
        prepared = runs.Outcome("skipped", "Nothing ran when it was due, and catch_up is 'none'.")
    else:
        try:
            prepared = _draft(context, schedule, times, current.time)
        except UnavailableError as error:
            if at - (schedule.next_run_at or at) < PATIENCE_SECONDS:
                raise
            prepared = runs.Outcome("failed", error.message)
    with context.database.write() as session:
        if not schedules.claim(session, schedule, current.following):
            return
        if schedules.has_run(session, schedule, current.time):
            return
        outcome = runs.create(context, session, schedule, prepared)
        planned = {"scheduled_at": current.time, "missed_from": current.missed_from}
        run = schedules.add_run(session, schedule, outcome.state, reason=outcome.reason, **outcome.ids, **planned)
    runs.announce(context, run, outcome)


def run_now(context: AppContext, project_id: str, schedule_id: str) -> ScheduleRun:
    """Run a schedule now, even if it is paused.

    Raises NotFoundError, UnavailableError; ConflictError if it changes meanwhile, or watches a folder.
    """
    with context.database.read() as session:
        schedule = schedules.get(session, project_id, schedule_id)
    if schedule.input["kind"] == "watch":
        message = "This schedule watches a folder: put an object there, and its next time makes a batch of it."
        raise ConflictError(message, code="watches_folder", param="schedule_id")
    at = now()
    times = cron.parse(schedule.cron, schedule.timezone)
    prepared = _draft(context, schedule, times, at)
    with context.database.write() as session:
        schedule = schedules.change(session, schedule)  # a concurrent tick then fails to claim it
        outcome = runs.create(context, session, schedule, prepared)
        run = schedules.add_run(session, schedule, outcome.state, reason=outcome.reason, **outcome.ids)
    runs.announce(context, run, outcome)
    return run


def _draft(context: AppContext, schedule: Schedule, times: Cron, at: int) -> Draft | CheckedJob | runs.Outcome:
    return runs.draft(context, schedule, times, at, lambda: run_templates.source(context, schedule, times, at))
