"""Schedules: recurring batches, when they run next, and the runs they have had.

A schedule's `next_run_at` is its queue. Who moves it on, by compare-and-set, runs the time that it named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import delete as delete_from
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from batchyard.errors import ConflictError, NotFoundError, RequestError
from batchyard.statuses import RUNNING
from store import listing
from store.database import changed
from store.records import Batch, Schedule, ScheduleRun, new_id, now

MAX_PER_PROJECT = 1000

Overlap = Literal["skip", "allow", "cancel_previous"]
CatchUp = Literal["latest", "none", "all"]
State = Literal["created", "skipped", "failed"]


def create(session: Session, project_id: str, **values: Any) -> Schedule:
    """A new schedule. Call it in a serial transaction, so that the limit holds.

    Raises:
        RequestError: the project has as many as it may have.
    """
    count = select(func.count()).select_from(Schedule).where(Schedule.project_id == project_id)
    if (session.scalar(count) or 0) >= MAX_PER_PROJECT:
        raise RequestError(
            f"This project has {MAX_PER_PROJECT} schedules, and may have no more; delete one.",
            code="too_many_schedules",
        )
    schedule = Schedule(id=new_id("sched_"), project_id=project_id, created_at=now(), **values)
    session.add(schedule)
    session.flush()
    return schedule


def get(session: Session, project_id: str, schedule_id: str, *, lock: bool = False) -> Schedule:
    """The schedule; with `lock`, nobody else changes or takes it until the transaction ends.

    Raises:
        NotFoundError: the project has no such schedule.
    """
    named = select(Schedule).where(Schedule.id == schedule_id, Schedule.project_id == project_id)
    schedule = session.scalar(named.with_for_update() if lock else named)
    if schedule is None:
        raise NotFoundError(f"No schedule found with id '{schedule_id}'.", param="schedule_id")
    return schedule


def page(session: Session, project_id: str, *, after: str | None, limit: int) -> tuple[Sequence[Schedule], bool]:
    """The project's schedules, newest first; whether there are more. Raises RequestError: `after` is none of them."""
    own = Schedule.project_id == project_id
    return listing.page(session, Schedule, own, after=after, limit=limit, descending=True)


def change(session: Session, schedule: Schedule, **values: Any) -> Schedule:
    """Change a schedule that is still as it was read; it is read again.

    Raises:
        ConflictError: somebody else has changed or deleted it meanwhile.
    """
    statement = update(Schedule).where(Schedule.id == schedule.id, Schedule.version == schedule.version)
    if not changed(session, statement.values(version=schedule.version + 1, **values)):
        raise ConflictError(
            f"Schedule '{schedule.id}' was changed meanwhile; look at it and try again.", param="schedule_id"
        )
    return session.get_one(Schedule, schedule.id, populate_existing=True)


def delete(session: Session, project_id: str, schedule_id: str) -> None:
    """Remove a schedule and what is known of its runs; their batches stay. Raises NotFoundError."""
    schedule = get(session, project_id, schedule_id, lock=True)
    session.execute(delete_from(ScheduleRun).where(ScheduleRun.schedule_id == schedule.id))
    session.delete(schedule)


def due(session: Session, moment: int, limit: int) -> Sequence[Schedule]:
    """At most `limit` schedules, of all projects, whose time has come at `moment`, the longest due first."""
    statement = select(Schedule).where(Schedule.next_run_at <= moment)
    return session.scalars(statement.order_by(Schedule.next_run_at).limit(limit)).all()


def claim(session: Session, schedule: Schedule, next_run_at: int | None) -> bool:
    """Move a schedule on to its next time; False if it is not as it was read: somebody else has taken its time.

    Until the transaction ends nobody else can take, change or delete it.
    """
    as_read = (
        Schedule.id == schedule.id,
        Schedule.version == schedule.version,
        Schedule.next_run_at.is_not_distinct_from(schedule.next_run_at),
    )
    return changed(session, update(Schedule).where(*as_read).values(next_run_at=next_run_at)) == 1


def has_run(session: Session, schedule: Schedule, scheduled_at: int) -> bool:
    """Whether that time was taken already, as it may have been where the clock was set back."""
    taken = select(ScheduleRun.id).where(
        ScheduleRun.schedule_id == schedule.id, ScheduleRun.scheduled_at == scheduled_at
    )
    return session.scalar(taken) is not None


def unfinished(session: Session, schedule: Schedule) -> Sequence[Batch]:
    """The schedule's batches that have not ended, newest first."""
    own = select(ScheduleRun.id).where(ScheduleRun.batch_id == Batch.id, ScheduleRun.schedule_id == schedule.id)
    running = select(Batch).where(Batch.project_id == schedule.project_id, Batch.status.in_(RUNNING), own.exists())
    return session.scalars(running.order_by(Batch.id.desc())).all()


def add_run(
    session: Session,
    schedule: Schedule,
    state: State,
    *,
    scheduled_at: int | None,
    missed_from: int | None,
    batch_id: str | None = None,
    reason: str | None = None,
) -> ScheduleRun:
    """Note what has become of a time; None: of a run that was asked for by hand."""
    run = ScheduleRun(
        id=new_id("run_"),
        project_id=schedule.project_id,
        schedule_id=schedule.id,
        scheduled_at=scheduled_at,
        missed_from=missed_from,
        state=state,
        batch_id=batch_id,
        reason=reason,
        created_at=now(),
    )
    session.add(run)
    session.flush()
    return run


def runs(session: Session, schedule: Schedule, *, after: str | None, limit: int) -> tuple[Sequence[ScheduleRun], bool]:
    """The schedule's runs, newest first; whether there are more. Raises RequestError: `after` is none of them."""
    own = ScheduleRun.schedule_id == schedule.id
    return listing.page(session, ScheduleRun, own, after=after, limit=limit, descending=True)


def last_runs(session: Session, schedule_ids: Sequence[str]) -> dict[str, ScheduleRun]:
    """The newest run of each schedule that has one."""
    newest = (
        select(ScheduleRun.id)
        .where(ScheduleRun.schedule_id == Schedule.id)
        .order_by(ScheduleRun.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    found = select(ScheduleRun).where(ScheduleRun.id.in_(select(newest).where(Schedule.id.in_(schedule_ids))))
    return {run.schedule_id: run for run in session.scalars(found)}


def of_batches(session: Session, batch_ids: Sequence[str]) -> dict[str, str]:
    """The schedule of each of these batches that one has made."""
    rows = session.execute(
        select(ScheduleRun.batch_id, ScheduleRun.schedule_id).where(ScheduleRun.batch_id.in_(batch_ids))
    )
    return {str(batch_id): schedule_id for batch_id, schedule_id in rows}
