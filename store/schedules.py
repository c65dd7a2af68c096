"""Schedules: recurring batches, their next times and their runs.

A compare-and-set of `next_run_at` claims a time; the winner creates the run.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import delete as delete_from
from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from batchyard.errors import ConflictError, NotFoundError, RequestError
from batchyard.statuses import JOB_RUNNING, RUNNING, TERMINAL
from store import listing
from store.database import changed
from store.records import Batch, Job, Schedule, ScheduleRun, WatchedObject, added

MAX_PER_PROJECT = 1000

Overlap = Literal["skip", "allow", "cancel_previous"]
CatchUp = Literal["latest", "none", "all"]
State = Literal["created", "skipped", "failed"]


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
    for record in (WatchedObject, ScheduleRun):
        session.execute(delete_from(record).where(record.schedule_id == schedule.id))
    session.delete(schedule)


def due(session: Session, at: int, limit: int) -> Sequence[Schedule]:
    """Return at most `limit` schedules of all projects that are due at `at` (Unix seconds), longest due first."""
    statement = select(Schedule).where(Schedule.next_run_at <= at)
    return session.scalars(statement.order_by(Schedule.next_run_at).limit(limit)).all()


def due_in_turn(session: Session, at: int, limit: int) -> list[Schedule]:
    """Return at most `limit` schedules that are due at `at`, projects in turn, the longest due of each first."""
    columns = select(Schedule.id, Schedule.project_id).where(Schedule.next_run_at <= at)
    turns, ranks = Counter[str](), dict[str, int]()
    for schedule_id, project_id in session.execute(columns.order_by(Schedule.next_run_at)):
        ranks[schedule_id] = turns[project_id]
        turns[project_id] += 1
    chosen = sorted(ranks, key=ranks.__getitem__)[:limit]
    found = {schedule.id: schedule for schedule in session.scalars(select(Schedule).where(Schedule.id.in_(chosen)))}
    return [found[schedule_id] for schedule_id in chosen if schedule_id in found]


def claim(session: Session, schedule: Schedule, next_run_at: int | None) -> bool:
    """Compare-and-set the next time, and lock the schedule. False if another transaction has changed it."""
    unchanged = (
        Schedule.id == schedule.id,
        Schedule.version == schedule.version,
        Schedule.next_run_at.is_not_distinct_from(schedule.next_run_at),
    )
    return changed(session, update(Schedule).where(*unchanged).values(next_run_at=next_run_at)) == 1


def has_run(session: Session, schedule: Schedule, scheduled_at: int) -> bool:
    statement = select(ScheduleRun.id).where(
        ScheduleRun.schedule_id == schedule.id, ScheduleRun.scheduled_at == scheduled_at
    )
    return session.scalar(statement) is not None


def unfinished(session: Session, schedule: Schedule) -> Sequence[Batch | Job]:
    record: Any = Batch if schedule.job is None else Job
    running = RUNNING if schedule.job is None else JOB_RUNNING
    run = select(ScheduleRun.id).where(_made(record) == record.id, ScheduleRun.schedule_id == schedule.id)
    active = (record.project_id == schedule.project_id, record.status.in_(running), run.exists())
    made: Sequence[Batch | Job] = session.scalars(select(record).where(*active).order_by(record.id.desc())).all()
    return made


def add_run(session: Session, schedule: Schedule, state: State, **values: Any) -> ScheduleRun:
    """Record a run of a schedule, with these columns. `scheduled_at` is None for a manual run."""
    run = ScheduleRun(project_id=schedule.project_id, schedule_id=schedule.id, state=state, **values)
    return added(session, run)


def runs(session: Session, schedule: Schedule, *, after: str | None, limit: int) -> tuple[Sequence[ScheduleRun], bool]:
    """Return the schedule's runs, newest first, and if more follow. Raises RequestError."""
    of_schedule = ScheduleRun.schedule_id == schedule.id
    return listing.page(session, ScheduleRun, of_schedule, after=after, limit=limit, descending=True)


def last_runs(session: Session, schedule_ids: Sequence[str]) -> dict[str, ScheduleRun]:
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
    return ScheduleRun.batch_id if record is Batch else ScheduleRun.job_id


class EndedObject(NamedTuple):
    """An object of a watched folder whose run has ended, with the batch or job that it became."""

    watched: WatchedObject
    run: ScheduleRun
    work: Batch | Job | None


def watched(session: Session, schedule_id: str) -> set[str]:
    """Return the versions of all objects that have had a run of a schedule."""
    return {*session.scalars(select(WatchedObject.version).where(WatchedObject.schedule_id == schedule_id))}


def has_watched(session: Session, schedule_id: str, version: str) -> bool:
    return session.get(WatchedObject, (schedule_id, version)) is not None


def ended_objects(session: Session, schedule_id: str, limit: int) -> list[EndedObject]:
    """Return objects whose run has ended and is not told yet. What retention has deleted is told no more."""
    ended = or_(ScheduleRun.state == "failed", Batch.status.in_(TERMINAL), Job.status.in_(TERMINAL))
    statement = (
        select(WatchedObject, ScheduleRun, Batch, Job)
        .join(ScheduleRun, ScheduleRun.id == WatchedObject.run_id)
        .outerjoin(Batch, Batch.id == ScheduleRun.batch_id)
        .outerjoin(Job, Job.id == ScheduleRun.job_id)
        .where(WatchedObject.schedule_id == schedule_id, ~WatchedObject.told, ended)
    )
    rows = session.execute(statement.order_by(WatchedObject.run_id).limit(limit))
    return [EndedObject(watched, run, batch or job) for watched, run, batch, job in rows]


def set_told(session: Session, watched: WatchedObject) -> None:
    key = WatchedObject.schedule_id == watched.schedule_id, WatchedObject.version == watched.version
    session.execute(update(WatchedObject).where(*key).values(told=True))
