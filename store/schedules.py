"""Schedules: recurring batches, their next times and their runs.

A compare-and-set of `next_run_at` claims a time; the winner creates the run.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from sqlalchemy import Select, func, select, update
from sqlalchemy import delete as delete_from
from sqlalchemy.orm import InstrumentedAttribute, Session

from batchyard.errors import ConflictError, NotFoundError, RequestError
from batchyard.statuses import JOB_RUNNING, RUNNING
from store import listing
from store.database import changed
from store.records import Batch, Job, Schedule, ScheduleRun, added

MAX_PER_PROJECT = 1000

Overlap = Literal["skip", "allow", "cancel_previous"]
CatchUp = Literal["latest", "none", "all"]
State = Literal["created", "skipped", "failed"]
Made = TypeVar("Made", Batch, Job)


def create(session: Session, project_id: str, **values: Any) -> Schedule:
    """Create a schedule in a serial transaction. Raises RequestError if there are MAX_PER_PROJECT."""
    count = select(func.count()).select_from(Schedule).where(Schedule.project_id == project_id)
    if (session.scalar(count) or 0) >= MAX_PER_PROJECT:
        raise RequestError(
            f"This project has {MAX_PER_PROJECT} schedules, and may have no more; delete one.",
            code="too_many_schedules",
        )
    return added(session, Schedule(project_id=project_id, **values))


def get(session: Session, project_id: str, schedule_id: str, *, lock: bool = False) -> Schedule:
    """Return a schedule, with `lock` until the transaction ends. Raises NotFoundError."""
    statement = select(Schedule).where(Schedule.id == schedule_id, Schedule.project_id == project_id)
    schedule = session.scalar(statement.with_for_update() if lock else statement)
    if schedule is None:
        raise NotFoundError(f"No schedule found with id '{schedule_id}'.", param="schedule_id")
    return schedule


def page(session: Session, project_id: str, *, after: str | None, limit: int) -> tuple[Sequence[Schedule], bool]:
    """Return the project's schedules, newest first, and if more follow. Raises RequestError."""
    in_project = Schedule.project_id == project_id
    return listing.page(session, Schedule, in_project, after=after, limit=limit, descending=True)


def change(session: Session, schedule: Schedule, **values: Any) -> Schedule:
    """Change a schedule and return it, read again. Raises ConflictError if it changed since it was read."""
    statement = update(Schedule).where(Schedule.id == schedule.id, Schedule.version == schedule.version)
    if not changed(session, statement.values(version=schedule.version + 1, **values)):
        raise ConflictError(
            f"Schedule '{schedule.id}' was changed meanwhile; look at it and try again.", param="schedule_id"
        )
    return session.get_one(Schedule, schedule.id, populate_existing=True)


def delete(session: Session, project_id: str, schedule_id: str) -> None:
    """Delete a schedule and its runs. Their batches and jobs stay. Raises NotFoundError."""
    schedule = get(session, project_id, schedule_id, lock=True)
    session.execute(delete_from(ScheduleRun).where(ScheduleRun.schedule_id == schedule.id))
    session.delete(schedule)


def due(session: Session, at: int, limit: int) -> Sequence[Schedule]:
    """Return at most `limit` schedules of all projects that are due at `at` (Unix seconds), longest due first."""
    statement = select(Schedule).where(Schedule.next_run_at <= at)
    return session.scalars(statement.order_by(Schedule.next_run_at).limit(limit)).all()


def claim(session: Session, schedule: Schedule, next_run_at: int | None) -> bool:
    """Compare-and-set the next time, and lock the schedule. False if another transaction has changed it."""
    unchanged = (
        Schedule.id == schedule.id,
        Schedule.version == schedule.version,
        Schedule.next_run_at.is_not_distinct_from(schedule.next_run_at),
    )
    return changed(session, update(Schedule).where(*unchanged).values(next_run_at=next_run_at)) == 1


def has_run(session: Session, schedule: Schedule, scheduled_at: int) -> bool:
    """True if the schedule has run at that time, as after the clock was set back."""
    statement = select(ScheduleRun.id).where(
        ScheduleRun.schedule_id == schedule.id, ScheduleRun.scheduled_at == scheduled_at
    )
    return session.scalar(statement) is not None


def unfinished(session: Session, schedule: Schedule) -> Sequence[Batch | Job]:
    """Return the schedule's unfinished batches or jobs, newest first."""
    if schedule.job is None:
        return session.scalars(_unfinished(Batch, RUNNING, schedule)).all()
    return session.scalars(_unfinished(Job, JOB_RUNNING, schedule)).all()


def _unfinished(record: type[Made], running: Sequence[str], schedule: Schedule) -> Select[Made]:
    run = select(ScheduleRun.id).where(_made(record) == record.id, ScheduleRun.schedule_id == schedule.id)
    active = (record.project_id == schedule.project_id, record.status.in_(running), run.exists())
    return select(record).where(*active).order_by(record.id.desc())


def add_run(session: Session, schedule: Schedule, state: State, **values: Any) -> ScheduleRun:
    """Record a run of a schedule, with these columns. `scheduled_at` is None for a manual run."""
    run = ScheduleRun(project_id=schedule.project_id, schedule_id=schedule.id, state=state, **values)
    return added(session, run)


def runs(session: Session, schedule: Schedule, *, after: str | None, limit: int) -> tuple[Sequence[ScheduleRun], bool]:
    """Return the schedule's runs, newest first, and if more follow. Raises RequestError."""
    of_schedule = ScheduleRun.schedule_id == schedule.id
    return listing.page(session, ScheduleRun, of_schedule, after=after, limit=limit, descending=True)


def last_runs(session: Session, schedule_ids: Sequence[str]) -> dict[str, ScheduleRun]:
    """Return the newest run of each schedule that has one, by schedule id."""
    newest = (
        select(ScheduleRun.id)
        .where(ScheduleRun.schedule_id == Schedule.id)
        .order_by(ScheduleRun.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    statement = select(ScheduleRun).where(ScheduleRun.id.in_(select(newest).where(Schedule.id.in_(schedule_ids))))
    return {run.schedule_id: run for run in session.scalars(statement)}


def of_work(session: Session, record: type[Batch] | type[Job], ids: Sequence[str]) -> dict[str, str]:
    """Return the schedule id of each of these batches or jobs that a schedule created, by its id."""
    made = _made(record)
    rows = session.execute(select(made, ScheduleRun.schedule_id).where(made.in_(ids)))
    return {str(work_id): schedule_id for work_id, schedule_id in rows}


def _made(record: type[Batch] | type[Job]) -> InstrumentedAttribute[str | None]:
    """Return the column with the id of the batch or the job that a run has created."""
    return ScheduleRun.batch_id if record is Batch else ScheduleRun.job_id
