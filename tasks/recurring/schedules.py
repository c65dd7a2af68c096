"""Schedules: a tick claims each scheduled time as it creates its batch or job.

So concurrent ticks, a killed tick and a lost message are harmless. An unclaimed time stays due, and housekeeping sends
the batch or job of a claimed one to a worker.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from sqlalchemy.orm import Session

from batchyard import cron
from batchyard.cron import Cron
from batchyard.errors import ConflictError, RequestError, UnavailableError
from batchyard.statuses import PRIORITIES
from store import batches, schedules
from store.jobs import lifecycle
from store.records import Batch, Job, Schedule, ScheduleRun, now
from store.schedules import CatchUp, State
from tasks import messages
from tasks.context import AppContext
from tasks.intake import submission
from tasks.intake.submission import Draft, Outlook
from tasks.port import CheckedJob, port
from tasks.recurring import run_templates

log = logging.getLogger(__name__)

# Schedules per tick: about as many as run before the next tick (9 ms each on SQLite), which continues.
AT_ONCE = 200
# `catch_up: all` runs at most this many of the missed times, the last ones.
MAX_CAUGHT_UP = 100
# A time that is longer ago is missed.
LATE_SECONDS = 60
# A run waits this long for an artifact store that is away, then fails.
PATIENCE_SECONDS = 600


@dataclass(frozen=True)
class ScheduledTime:
    """The time that a tick runs of a schedule, and the times around it.

    Attributes:
        time: in Unix seconds.
        following: the schedule's next time after it; None if there is no other.
        missed_from: first of the times before `time` that are skipped; None if none is.
        missed: True if `time` itself is skipped too.
    """

    time: int
    following: int | None
    missed_from: int | None
    missed: bool


@dataclass(frozen=True)
class _Outcome:
    """The outcome of a scheduled time; `reason` is why no batch or job was created."""

    state: State
    reason: str | None = None
    created: Batch | Job | None = None
    outlook: Outlook | None = None

    @property
    def ids(self) -> dict[str, str]:
        """The column of a run with what was created."""
        if self.created is None:
            return {}
        return {"batch_id" if isinstance(self.created, Batch) else "job_id": self.created.id}


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
        due = schedules.due(session, at, AT_ONCE)
    for schedule in sorted(due, key=lambda schedule: schedule.input["kind"] == "url"):  # a bucket may be slow
        try:
            run_one(context, schedule, at)
        except Exception:
            log.exception("a schedule could not be run, and stays due", extra={"schedule_id": schedule.id})


def run_one(context: AppContext, schedule: Schedule, at: int) -> None:
    """Run the due time of a schedule, unless another tick has claimed it."""
    times = cron.parse(schedule.cron, schedule.timezone)
    current = scheduled_time(times, cast(CatchUp, schedule.catch_up), schedule.next_run_at or at, at)
    prepared: Draft | CheckedJob | _Outcome
    if current.missed:
        prepared = _Outcome("skipped", "Nothing ran when it was due, and catch_up is 'none'.")
    else:
        try:
            prepared = _draft(context, schedule, times, current.time)
        except UnavailableError as error:
            if at - current.time < PATIENCE_SECONDS:
                raise
            prepared = _Outcome("failed", error.message)
    with context.database.write() as session:
        if not schedules.claim(session, schedule, current.following):
            return
        if schedules.has_run(session, schedule, current.time):
            return
        outcome = prepared if isinstance(prepared, _Outcome) else _create(context, session, schedule, prepared)
        planned = {"scheduled_at": current.time, "missed_from": current.missed_from}
        run = schedules.add_run(session, schedule, outcome.state, reason=outcome.reason, **outcome.ids, **planned)
    _announce(context, run, outcome)


def run_now(context: AppContext, project_id: str, schedule_id: str) -> ScheduleRun:
    """Run a schedule now, even if it is paused. Its times stay as they are.

    Raises NotFoundError, UnavailableError; ConflictError if another request is changing it.
    """
    with context.database.read() as session:
        schedule = schedules.get(session, project_id, schedule_id)
    at = now()
    times = cron.parse(schedule.cron, schedule.timezone)
    prepared = _draft(context, schedule, times, at)
    with context.database.write() as session:
        schedule = schedules.change(session, schedule)  # a concurrent tick then fails to claim it
        outcome = prepared if isinstance(prepared, _Outcome) else _create(context, session, schedule, prepared)
        run = schedules.add_run(session, schedule, outcome.state, reason=outcome.reason, **outcome.ids)
    _announce(context, run, outcome)
    return run


def _draft(context: AppContext, schedule: Schedule, times: Cron, at: int) -> Draft | CheckedJob | _Outcome:
    """Prepare a run's batch or job; return the outcome of one that cannot be. Raises UnavailableError."""
    options = schedule.job or schedule.batch
    expires_after = options["output_expires_after"]
    common = {
        "completion_window": options["completion_window"],
        "output_expires_after": expires_after and expires_after["seconds"],
    }
    metadata = run_templates.fill_values(options["metadata"], times, at)
    name = f"{schedule.name} {times.local(at):%Y-%m-%d %H:%M}"
    try:
        source = run_templates.source(context, schedule, times, at)
    except RequestError as error:
        return _Outcome("failed", error.message)
    if schedule.job is None:
        batch = Batch(
            project_id=schedule.project_id,
            request_metadata=metadata,
            endpoint=options["endpoint"],
            name=name,
            post_process=options["post_process"],
            on_invalid=options["on_invalid"],
            stop_when={name: limit for name, limit in (options.get("stop_when") or {}).items() if limit} or None,
            priority=PRIORITIES[options["priority"]],
            **common,
        )
        return submission.draft(context, batch, source)
    values = {"name": options["name"] or name, "metadata": metadata, **common}
    try:
        return port().draft(context, schedule, source, values)
    except RequestError as error:  # the deployment has another recipe by now, or no such model
        return _Outcome("failed", error.message)


def _create(context: AppContext, session: Session, schedule: Schedule, draft: Draft | CheckedJob) -> _Outcome:
    """Create a run's batch or job, if the schedule's overlap and the project's limits allow it."""
    unfinished = [] if schedule.overlap == "allow" else schedules.unfinished(session, schedule)
    if unfinished and schedule.overlap == "skip":
        kind = "Batch" if isinstance(unfinished[0], Batch) else "Job"
        return _Outcome("skipped", f"{kind} '{unfinished[0].id}' of a run before has not ended, and overlap is 'skip'.")
    try:
        with session.begin_nested():
            # Before the project is locked (store.projects.get).
            for earlier in unfinished:
                cancel = batches.cancel if isinstance(earlier, Batch) else lifecycle.cancel
                with suppress(ConflictError):  # it has ended meanwhile
                    cancel(session, schedule.project_id, earlier.id)
            if isinstance(draft, Draft):
                return _Outcome("created", created=submission.submit(context, session, draft), outlook=draft.outlook)
            return _Outcome("created", created=port().submit(context, session, draft))
    except RequestError as error:
        return _Outcome("failed", error.message)


def _announce(context: AppContext, run: ScheduleRun, outcome: _Outcome) -> None:
    ids = {"schedule_id": run.schedule_id, "batch_id": run.batch_id, "job_id": run.job_id}
    log.info("schedule ran", extra={**ids, "scheduled_at": run.scheduled_at, "state": run.state})
    if isinstance(outcome.created, Job):
        port().send(outcome.created)
    elif outcome.created is not None:
        messages.validate(outcome.created.id, outcome.created.name)
        submission.estimate_completion(context, outcome.created, outcome.outlook)
