"""Schedules: a tick runs what is due. Each time is taken once, in the transaction that makes its batch.

Two ticks at once, a tick that is killed and a message that is lost are harmless for that reason: a time that was not
taken is still due, and housekeeping finds the batch of one that was.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy.orm import Session

from batchyard import cron
from batchyard.cron import Cron
from batchyard.errors import ConflictError, RequestError, UnavailableError
from store import batches, schedules
from store.artifacts import Writer
from store.records import Batch, Schedule, ScheduleRun, now
from store.schedules import CatchUp, State
from tasks import messages
from tasks.context import AppContext
from tasks.intake import submission
from tasks.recurring import run_templates

log = logging.getLogger(__name__)

# Schedules one tick looks at, about what it can run until the next one begins, which goes on (9 ms each on SQLite).
AT_ONCE = 200
# Missed times that `catch_up: all` makes up for, the last ones.
MAX_CAUGHT_UP = 100
# A time is missed when it is this long ago.
LATE_SECONDS = 60
# How long a run waits for an artifact store that is away.
PATIENCE_SECONDS = 600


@dataclass(frozen=True)
class ScheduledTime:
    """What a tick does with a schedule: run `time`, unless that is `missed`, and go on at `following`.

    `missed_from` is the first of the times before `time` that are not run.
    """

    time: int
    following: int | None
    missed_from: int | None
    missed: bool


@dataclass(frozen=True)
class _Outcome:
    """What has become of a time."""

    state: State
    reason: str | None = None
    batch: Batch | None = None


def scheduled_time(cron: Cron, catch_up: CatchUp, first: int, moment: int) -> ScheduledTime:
    """What to do at `moment` with a schedule that is due since `first`."""
    found = cron.last(first, moment, MAX_CAUGHT_UP if catch_up == "all" else 1)
    time = found[0] if found else first
    return ScheduledTime(
        time=time,
        following=cron.next(time if catch_up == "all" else moment),
        missed_from=first if first < time else None,
        missed=catch_up == "none" and moment - time > LATE_SECONDS,
    )


def tick(context: AppContext) -> None:
    """Run what is due now."""
    run_due(context, now())


def run_due(context: AppContext, moment: int) -> None:
    """Run what is due at `moment`: of each schedule one time. One that cannot be run holds up no other."""
    with context.database.read() as session:
        due = schedules.due(session, moment, AT_ONCE)
    for schedule in due:
        try:
            run_one(context, schedule, moment)
        except Exception:
            log.exception("a schedule could not be run, and stays due", extra={"schedule_id": schedule.id})


def run_one(context: AppContext, schedule: Schedule, moment: int) -> None:
    """Run the time of a schedule that was seen due, unless somebody else has taken it."""
    times = cron.parse(schedule.cron, schedule.timezone)
    current = scheduled_time(times, cast(CatchUp, schedule.catch_up), schedule.next_run_at or moment, moment)
    written, outcome = None, None
    if current.missed:
        outcome = _Outcome("skipped", "Nothing ran when it was due, and catch_up is 'none'.")
    else:
        try:
            written = run_templates.write(context, schedule, times, current.time)
        except UnavailableError as error:
            if moment - current.time < PATIENCE_SECONDS:
                raise
            outcome = _Outcome("failed", error.message)
    with context.database.write() as session:
        if not schedules.claim(session, schedule, current.following):
            return
        if schedules.has_run(session, schedule, current.time):
            return
        outcome = outcome or _make(context, session, schedule, times, current.time, written)
        run = _note(session, schedule, outcome, scheduled_at=current.time, missed_from=current.missed_from)
    _tell(context, run, outcome.batch)


def run_now(context: AppContext, project_id: str, schedule_id: str) -> ScheduleRun:
    """Run a schedule, also one that is paused, without touching its times.

    Raises:
        NotFoundError, UnavailableError.
        ConflictError: somebody is changing it.
    """
    with context.database.read() as session:
        schedule = schedules.get(session, project_id, schedule_id)
    moment = now()
    times = cron.parse(schedule.cron, schedule.timezone)
    written = run_templates.write(context, schedule, times, moment)
    with context.database.write() as session:
        schedule = schedules.change(session, schedule)  # nobody else makes a run of it meanwhile
        outcome = _make(context, session, schedule, times, moment, written)
        run = _note(session, schedule, outcome, scheduled_at=None, missed_from=None)
    _tell(context, run, outcome.batch)
    return run


def set_paused(context: AppContext, project_id: str, schedule_id: str, *, paused: bool) -> Schedule:
    """Pause a schedule, or let it go on from its next time; one that is so already stays as it is.

    Raises:
        NotFoundError.
    """
    with context.database.write() as session:
        schedule = schedules.get(session, project_id, schedule_id, lock=True)
        if schedule.paused == paused:
            return schedule
        next_run_at = None if paused else cron.parse(schedule.cron, schedule.timezone).next(now())
        return schedules.change(session, schedule, paused=paused, next_run_at=next_run_at)


def _make(
    context: AppContext, session: Session, schedule: Schedule, times: Cron, moment: int, written: Writer | None
) -> _Outcome:
    """Make a run's batch, if its turn and the project's room allow it."""
    before = [] if schedule.overlap == "allow" else schedules.unfinished(session, schedule)
    if before and schedule.overlap == "skip":
        return _Outcome("skipped", f"Batch '{before[0].id}' of a run before has not ended, and overlap is 'skip'.")
    options = schedule.batch
    expires_after = options["output_expires_after"]
    try:
        with session.begin_nested():
            batch = submission.submit(
                context,
                session,
                schedule.project_id,
                input_file=run_templates.file(session, schedule, written, moment),
                endpoint=options["endpoint"],
                completion_window=options["completion_window"],
                metadata=run_templates.fill_values(options["metadata"], times, moment),
                post_process=options["post_process"],
                output_expires_after=expires_after and expires_after["seconds"],
            )
    except RequestError as error:
        return _Outcome("failed", error.message)
    for earlier in before:
        with suppress(ConflictError):  # it has just ended by itself
            batches.cancel(session, schedule.project_id, earlier.id)
    return _Outcome("created", batch=batch)


def _note(
    session: Session, schedule: Schedule, outcome: _Outcome, *, scheduled_at: int | None, missed_from: int | None
) -> ScheduleRun:
    return schedules.add_run(
        session,
        schedule,
        outcome.state,
        scheduled_at=scheduled_at,
        missed_from=missed_from,
        batch_id=outcome.batch.id if outcome.batch else None,
        reason=outcome.reason,
    )


def _tell(context: AppContext, run: ScheduleRun, batch: Batch | None) -> None:
    ids = {"schedule_id": run.schedule_id, "batch_id": run.batch_id}
    log.info("schedule ran", extra={**ids, "scheduled_at": run.scheduled_at, "state": run.state})
    if batch is not None:
        messages.validate(batch.id)
        submission.estimate_completion(context, batch)


def define(
    context: AppContext, project_id: str, said: Mapping[str, Any], old: Schedule | None = None
) -> dict[str, Any]:
    """A schedule's values for what a client said; what it left out stays as in `old`.

    Args:
        said: fields of the create body, those that were given.

    Raises:
        RequestError: something cannot be used.
    """

    def settled(name: str) -> Any:
        return said[name] if name in said else getattr(old, name)

    values = dict(said)
    times = cron.parse(settled("cron"), settled("timezone"))
    if said.keys() & {"cron", "timezone"}:
        values["next_run_at"] = None if settled("paused") else times.next(now())
    if "batch" in said:
        submission.check_window(context.settings, said["batch"]["completion_window"])
    text = None
    if "input" in said:
        text = said["input"]["template"]
    elif "batch" in said and old is not None:
        text = run_templates.template(context, old)
    if text is not None:
        run_templates.check_template(context, settled("batch")["endpoint"], text, times)
    if "input" in said:
        values["input"], values["input_sha256"] = run_templates.pin(context, project_id, said["input"])
    return values
