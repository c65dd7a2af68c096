"""Schedules belong to one project, are changed by whoever read them last, and are found by when they are due."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event, insert, select, text

from batchyard.errors import ConflictError, NotFoundError, RequestError
from store import batches, keys, schedules
from store.database import Database
from store.records import Batch, Project, Schedule, ScheduleRun

DUE = 1_000_000
NewSchedule = Callable[..., Schedule]


def values(**changes: Any) -> dict[str, Any]:
    """The columns of a schedule."""
    return {
        "name": "nightly",
        "cron": "* * * * *",
        "timezone": "UTC",
        "input": {"kind": "template"},
        "input_sha256": "0" * 64,
        "batch": {},
        "overlap": "skip",
        "catch_up": "latest",
        "next_run_at": DUE,
    } | changes


@pytest.fixture
def new_schedule(database: Database, project: str) -> NewSchedule:
    def make(**changes: Any) -> Schedule:
        with database.write() as session:
            return schedules.create(session, project, **values(**changes))

    return make


@pytest.fixture
def stranger(database: Database) -> str:
    """The id of another project."""
    with database.write() as session:
        keys.create(session, "other")
        return session.scalars(select(Project.id).where(Project.name == "other")).one()


def add_run(database: Database, schedule: Schedule, **values: Any) -> ScheduleRun:
    with database.write() as session:
        return schedules.add_run(
            session, schedule, "created", **{"scheduled_at": None, "missed_from": None, "batch_id": None} | values
        )


def test_another_projects_schedule_is_not_there(database: Database, new_schedule: NewSchedule, stranger: str) -> None:
    schedule = new_schedule()
    with pytest.raises(NotFoundError), database.read() as session:
        schedules.get(session, stranger, schedule.id)
    with pytest.raises(NotFoundError), database.write() as session:
        schedules.delete(session, stranger, schedule.id)
    with database.read() as session:
        assert schedules.page(session, stranger, after=None, limit=10) == ([], False)
        with pytest.raises(RequestError):
            schedules.page(session, stranger, after=schedule.id, limit=10)


def test_however_many_schedules_of_a_project_are_due_another_projects_is_among_the_first(
    database: Database, new_schedule: NewSchedule, stranger: str
) -> None:
    own = [new_schedule(next_run_at=DUE + number) for number in range(3)]
    with database.write() as session:
        theirs = schedules.create(session, stranger, **values(next_run_at=DUE + 10))
    with database.read() as session:
        due = [[schedule.id for schedule in schedules.due_in_turn(session, DUE + 20, limit)] for limit in (1, 2, 9)]
    assert due == [[own[0].id], [own[0].id, theirs.id], [own[0].id, theirs.id, own[1].id, own[2].id]]


def test_a_project_has_a_thousand_schedules_at_most(
    database: Database, project: str, new_schedule: NewSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "MAX_PER_PROJECT", 5)
    together = threading.Barrier(8)

    def create(_: int) -> bool:
        together.wait()
        try:
            with database.write(serial=True) as session:
                schedules.create(session, project, **values())
        except RequestError as error:
            assert error.code == "too_many_schedules"
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 5


def test_of_two_who_change_a_schedule_as_they_read_it_the_second_is_told(
    database: Database, new_schedule: NewSchedule
) -> None:
    read = new_schedule()
    with database.write() as session:
        assert schedules.change(session, read, name="first").name == "first"
    with pytest.raises(ConflictError, match="changed meanwhile"), database.write() as session:
        schedules.change(session, read, name="second")
    with database.read() as session:
        assert schedules.get(session, read.project_id, read.id).name == "first"


def test_of_many_who_take_a_due_time_one_gets_it(database: Database, new_schedule: NewSchedule) -> None:
    schedule = new_schedule()
    together = threading.Barrier(8)

    def claim(_: int) -> bool:
        together.wait()
        with database.write() as session:
            return schedules.claim(session, schedule, DUE + 60)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(8))) == 1


def test_a_schedule_that_was_changed_or_deleted_since_it_was_read_is_not_taken(
    database: Database, new_schedule: NewSchedule
) -> None:
    changed, deleted = new_schedule(), new_schedule()
    with database.write() as session:
        schedules.change(session, changed, paused=True, next_run_at=None)
        schedules.delete(session, deleted.project_id, deleted.id)
    with database.write() as session:
        assert not schedules.claim(session, changed, DUE + 60)
        assert not schedules.claim(session, deleted, DUE + 60)


def test_what_is_due_comes_longest_first_and_paused_schedules_never(
    database: Database, new_schedule: NewSchedule
) -> None:
    late, latest = new_schedule(next_run_at=DUE - 1), new_schedule(next_run_at=DUE - 2)
    new_schedule(next_run_at=DUE + 1)
    new_schedule(next_run_at=None, paused=True)
    with database.read() as session:
        assert [schedule.id for schedule in schedules.due(session, DUE, 10)] == [latest.id, late.id]
        assert [schedule.id for schedule in schedules.due(session, DUE, 1)] == [latest.id]


def test_among_many_schedules_what_is_due_is_found_by_its_index(database: Database, project: str) -> None:
    rows = [
        values(id=f"sched_{number:06}", project_id=project, next_run_at=DUE + number, created_at=DUE, version=0)
        | {"paused": False}
        for number in range(5000)
    ]
    statements: list[tuple[str, Any]] = []
    with database.write() as session:
        session.execute(insert(Schedule), rows)
        if not database.sqlite:
            session.execute(text("ANALYZE schedules"))
        event.listen(
            session.connection(),
            "before_cursor_execute",
            lambda *arguments: statements.append((arguments[2], arguments[3])),
        )
        assert len(schedules.due(session, DUE + 2, 500)) == 3
        statement, parameters = statements[-1]
        explain = "EXPLAIN QUERY PLAN " if database.sqlite else "EXPLAIN "
        plan = session.connection().exec_driver_sql(explain + statement, parameters).all()
    assert "ix_schedules_next_run_at" in str(plan)


def test_a_deleted_schedule_leaves_its_batches_and_no_history(
    database: Database, new_schedule: NewSchedule, new_batch: Callable[..., Batch]
) -> None:
    schedule, other, batch = new_schedule(), new_schedule(), new_batch()
    add_run(database, schedule, batch_id=batch.id)
    kept = add_run(database, other)
    with database.read() as session:
        assert schedules.of_work(session, Batch, [batch.id]) == {batch.id: schedule.id}
    with database.write() as session:
        schedules.delete(session, schedule.project_id, schedule.id)
    with database.read() as session:
        assert batches.get(session, batch.project_id, batch.id).status == "validating"
        assert schedules.of_work(session, Batch, [batch.id]) == {}
        assert [run.id for run in session.scalars(select(ScheduleRun))] == [kept.id]


def test_the_last_runs_of_many_schedules_are_found_together(database: Database, new_schedule: NewSchedule) -> None:
    first, second, never = new_schedule(), new_schedule(), new_schedule()
    runs = [add_run(database, schedule) for schedule in (first, second, first)]
    with database.read() as session:
        last_runs = schedules.last_runs(session, [first.id, second.id, never.id])
    assert {schedule_id: run.id for schedule_id, run in last_runs.items()} == {
        first.id: runs[2].id,
        second.id: runs[1].id,
    }


def test_only_a_schedules_own_batches_that_have_not_ended_count_as_unfinished(
    database: Database, new_schedule: NewSchedule, new_batch: Callable[..., Batch]
) -> None:
    schedule, other = new_schedule(), new_schedule()
    running, ended, others = new_batch(), new_batch(), new_batch()
    new_batch()
    for owner, batch in ((schedule, running), (schedule, ended), (other, others)):
        add_run(database, owner, batch_id=batch.id)
    with database.write() as session:
        batches.reject(session, ended.id, [])
    with database.read() as session:
        assert [batch.id for batch in schedules.unfinished(session, schedule)] == [running.id]
