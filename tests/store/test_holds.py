"""A model that cannot run is on hold: its batches wait, say why, and go on as soon as an engine answers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from sqlalchemy import select, update

from store import events, holds, keys, segments
from store.database import Database
from store.records import Batch, Event, Hold, Project

NewBatch = Callable[..., Batch]
pytestmark = pytest.mark.usefixtures("frozen_time")  # a first hold lasts five seconds


def hold(database: Database, model: str = "echo", reason: str = "no weights") -> Hold:
    with database.write() as session:
        return holds.hold(session, model, reason)


def die(database: Database, batch: Batch, engine: str, reason: str = "killed") -> bool:
    with database.write() as session:
        return holds.record_death(
            session, batch.id, model="echo", engine=engine, replica=0, reason=reason, requests=3, next="runs_alone"
        )


def waiting(database: Database) -> list[str]:
    """The batches whose segments may start."""
    with database.read() as session:
        return sorted(entry.batch_id for entry in segments.waiting(session, 10))


def held(database: Database) -> list[str]:
    """The batches with an event of a hold."""
    with database.read() as session:
        return list(session.scalars(select(Event.batch_id).where(Event.type == "batch.held").order_by(Event.id)))


def test_a_held_model_keeps_its_batches_waiting_and_no_others(database: Database, new_batch: NewBatch) -> None:
    batch, other = new_batch(1), new_batch(1, model="other")
    hold(database)
    assert waiting(database) == [other.id]
    with database.read() as session:
        assert {
            batch_id: entry.reason for batch_id, entry in holds.of_batches(session, [batch.id, other.id]).items()
        } == {batch.id: "no weights"}
        assert set(holds.all_of(session)) == {"echo"}


def test_a_held_batch_says_so_once_a_hold(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1)
    for reason in ("no weights", "no disk"):
        hold(database, reason=reason)
    assert held(database) == [batch.id]
    later = new_batch(1)
    hold(database)
    assert held(database) == [batch.id, later.id]


def test_each_further_failure_of_a_start_holds_longer(database: Database, new_batch: NewBatch) -> None:
    pauses = [hold(database).retry_at - time.time() for _ in range(9)]
    assert pauses[:3] == [pytest.approx(seconds, abs=2) for seconds in (5, 10, 20)]
    assert pauses[-1] == pytest.approx(300, abs=2)


def test_a_model_that_may_be_tried_again_starts_although_it_is_on_hold(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1)
    hold(database)
    with database.write() as session:
        session.execute(update(Hold).values(retry_at=time.time() - 1))
    assert waiting(database) == [batch.id]
    with database.read() as session:
        assert holds.of_batches(session, [batch.id])[batch.id].attempts == 1


@pytest.mark.parametrize(
    ("window", "left", "starts"),
    [(86400, 61, False), (86400, 59, True), (300, 31, False), (300, 29, True)],  # a tenth of a short window
)
def test_a_batch_that_can_wait_no_longer_starts_on_a_held_model(
    database: Database, new_batch: NewBatch, window: int, left: int, starts: bool
) -> None:
    batch = new_batch(1)
    with database.write() as session:
        holds.hold_unserved(session, "echo")
        expires_at = int(time.time()) + left
        session.execute(update(Batch).values(expires_at=expires_at, created_at=expires_at - window))
    assert waiting(database) == ([batch.id] if starts else [])


def test_a_model_that_is_not_served_waits_however_long_and_whatever_its_engines_do(
    database: Database, new_batch: NewBatch
) -> None:
    new_batch(1)
    hold(database)
    with database.write() as session:
        holds.hold_unserved(session, "echo")
        assert holds.unserved(session) == {"echo"}
        holds.engine_answered(session, "echo")
    assert waiting(database) == []
    with database.write() as session:
        holds.release(session, "echo")
    assert len(waiting(database)) == 1


def test_an_engine_that_starts_ends_a_hold(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1)
    hold(database)
    with database.write() as session:
        holds.engine_started(session, "echo")
    assert waiting(database) == [batch.id]
    with database.read() as session:
        assert holds.failures(session)["echo"].reason == "no weights", "kept until an engine answers"


def test_a_model_whose_engines_only_die_waits_until_one_answers(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1)
    for number in range(holds.FRUITLESS_DEATHS):
        with database.write() as session:
            assert holds.hold_after_deaths(session, "echo") is None
        assert die(database, batch, f"engine {number}")
    with database.write() as session:
        record = holds.hold_after_deaths(session, "echo")
        assert record is not None
        assert record.reason == "its engines died 4 times without an answer between, at last: killed"
        assert holds.hold_after_deaths(session, "echo") is None, "it waits already"
        holds.engine_started(session, "echo")
    assert waiting(database) == []
    with database.write() as session:
        holds.engine_answered(session, "echo")
        assert holds.failures(session) == {}
    assert waiting(database) == [batch.id]


def test_one_death_that_two_batches_report_counts_for_both_and_once_for_the_model(
    database: Database, new_batch: NewBatch
) -> None:
    first, second = new_batch(1), new_batch(1)
    assert die(database, first, "engine 1")
    assert not die(database, second, "engine 1")
    with database.read() as session:
        assert holds.failures(session)["echo"].deaths == 1
        for batch in (first, second):
            deaths = session.get_one(Batch, batch.id).engine_deaths
            assert deaths is not None and deaths["echo"]["deaths"] == 1
            assert events.recorded(session, batch, "engine.died")


def test_a_batch_keeps_few_reasons_of_deaths_and_counts_all(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1)
    for number in range(holds.MAX_REASONS + 3):
        die(database, batch, f"engine {number}", reason=f"reason {number}" + "x" * holds.MAX_REASON)
    die(database, batch, "engine", reason="reason 0" + "x" * holds.MAX_REASON)
    with database.read() as session:
        (of_model,) = (session.get_one(Batch, batch.id).engine_deaths or {}).values()
    assert of_model["deaths"] == holds.MAX_REASONS + 4
    assert len(of_model["reasons"]) == holds.MAX_REASONS
    assert next(iter(of_model["reasons"].values())) == 2
    assert max(map(len, of_model["reasons"])) <= holds.MAX_REASON


def test_a_hold_that_nobody_waits_for_is_not_shown(database: Database, new_batch: NewBatch) -> None:
    hold(database, "other")
    new_batch(1)
    with database.read() as session:
        assert holds.all_of(session) == {}


def test_a_death_that_live_requests_and_a_batch_see_is_one_death_of_the_model(
    database: Database, new_batch: NewBatch
) -> None:
    assert die(database, new_batch(1), "first")
    for engine, is_new in (("first", False), ("second", True), ("second", False)):
        with database.write() as session:
            death = {"engine": engine, "reason": "killed by signal 9", "requests": 0, "next": "starts_again"}
            assert holds.record_death(session, None, model="echo", replica=0, **death) is is_new  # type: ignore[arg-type]
    with database.read() as session:
        failure = holds.failures(session)["echo"]
        assert (failure.deaths, failure.reason) == (2, "killed by signal 9")
    with database.write() as session:
        holds.engine_answered(session, "echo")
        assert not holds.failures(session)


def test_a_death_without_a_batch_is_one_event_of_each_project_with_an_admin_key(
    database: Database, project: str
) -> None:
    death = {"model": "echo", "engine": "1", "replica": 2, "reason": "killed", "requests": 0, "next": "starts_again"}
    with database.write() as session:
        keys.create(session, "plain")
        admins = {keys.create(session, name, admin=True).project for name in ("operators", "others")}
        first, second = (holds.record_death(session, None, **death) for _ in range(2))  # type: ignore[arg-type]
    assert (first, second) == (True, False)
    with database.read() as session:
        records = list(session.scalars(select(Event).where(Event.type == "engine.died")))
        of = [session.get_one(Project, event.project_id).name for event in records]
        assert set(of) >= admins and "plain" not in of and len(of) == len(set(of))
        assert records[0].data["deaths"] == 1 and records[0].data["next"] == "starts_again"
        assert holds.failures(session)["echo"].reason == "killed"
