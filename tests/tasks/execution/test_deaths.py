"""Every death of an engine is recorded for its batch and its job, and engines that only die put their model on hold."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import select, update

from batchyard.errors import EngineError
from inference.answers import Death
from store import events, holds
from store.records import Batch, Event, Hold, Job, Segment
from tasks.context import AppContext
from tasks.execution import segment, tally
from tasks.finishing import manifest
from tasks.scheduling import deadlines
from tests.support.planned import answers, dispatched, plan_batch, reload, the_segment
from tests.tasks.execution.conftest import DirectedEngine

REASON = "killed by SIGKILL; the machine had 0.1 GiB free. Remedy: give it more memory."


@pytest.fixture
def batch(context: AppContext, project: str) -> Batch:
    return plan_batch(context, project, ["one", "two", "three", "four", "five"])


def run(context: AppContext, batch: Batch) -> bool:
    return segment.run(context, *dispatched(context.database, batch), "here/1/task")


def die(engine: DirectedEngine, number: int, *, first: int = 0, then: str = "runs_alone", answered: int = 0) -> None:
    """Let the next run answer some requests, and then end after so many deaths."""

    def dies(lines: list[int]) -> Iterator[pa.Table]:
        if answered:
            yield answers(lines[:answered])
        for index in range(first, first + number):
            engine.on_death(Death("echo", f"engine {index}", 0, REASON, 5, then))  # type: ignore[arg-type]
        raise EngineError("died too often")

    engine.run = dies


def recorded(context: AppContext) -> list[Event]:
    with context.database.read() as session:
        return list(session.scalars(select(Event).where(Event.type == "engine.died").order_by(Event.id)))


def held(context: AppContext) -> list[Hold]:
    with context.database.read() as session:
        return list(session.scalars(select(Hold)))


def document(context: AppContext, batch: Batch) -> Any:
    with context.database.read() as session:
        return json.loads(manifest.build(session, reload(context.database, batch), "completed"))


def test_a_death_is_an_event_of_the_batch_and_stands_in_its_manifest(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    die(engine, 2)
    run(context, batch)
    first, second = recorded(context)
    assert first.batch_id == batch.id and first.job_id is None
    facts = {"model": "echo", "replica": 0, "reason": REASON, "requests": 5, "next": "runs_alone"}
    assert first.data == {"id": batch.id, **facts, "deaths": 1} and second.data["deaths"] == 2
    of_model = document(context, batch)["models"]["echo"]
    assert (of_model["engine_deaths"], of_model["engine_death_reasons"]) == (2, {REASON: 2})


def test_a_death_in_a_jobs_stage_is_an_event_of_the_job_too(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    with context.database.write() as session:
        session.execute(update(Batch).values(job_id="job_1"))
    die(engine, 1)
    run(context, batch)
    (event,) = recorded(context)
    assert (event.batch_id, event.job_id, event.data["job_id"]) == (batch.id, "job_1", "job_1")
    with context.database.read() as session:
        records, _ = events.page(session, Job(id="job_1"), after=None, limit=10)
    assert [record.type for record in records] == ["engine.died"]


def test_many_deaths_are_counted_and_only_the_first_are_events(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    die(engine, holds.DEATH_EVENTS + 7)
    run(context, batch)
    assert len(recorded(context)) == holds.DEATH_EVENTS
    assert document(context, batch)["models"]["echo"]["engine_deaths"] == holds.DEATH_EVENTS + 7


def test_a_death_that_two_batches_report_counts_once_for_the_model(
    connected: AppContext, project: str, engine: DirectedEngine
) -> None:
    for _ in range(2):
        die(engine, 1)
        run(connected, plan_batch(connected, project, ["one"]))
    assert tally.read(connected)["engine_deaths", "echo"] == 1
    with connected.database.read() as session:
        assert holds.failures(session)["echo"].deaths == 1


@pytest.mark.usefixtures("frozen_time")
def test_deaths_that_bring_nothing_hold_the_model_over_runs_and_each_hold_is_longer(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    die(engine, 2)
    run(context, batch)
    assert held(context) == [], "two deaths may be one request's fault"
    pauses = []
    for number in range(1, 4):
        die(engine, 2, first=2 * number)
        run(context, batch)
        (hold,) = held(context)
        assert REASON in hold.reason and f"died {2 * number + 2} times" in hold.reason
        pauses.append(round(hold.retry_at - time.time()))
        with context.database.write() as session:
            session.execute(update(Hold).values(retry_at=0.0))
            session.execute(update(Segment).values(attempts=0))
    assert pauses == [5, 10, 20], "that the engine starts ends no hold"
    with context.database.read() as session:
        assert events.recorded(session, batch, "batch.held")


def test_an_answer_ends_the_hold_and_the_models_failure(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    die(engine, holds.FRUITLESS_DEATHS)
    run(context, batch)
    assert len(held(context)) == 1
    engine.run = lambda lines: iter([answers(lines)])
    assert run(context, batch) and the_segment(context.database, batch).state == "done"
    assert held(context) == []
    with context.database.read() as session:
        assert holds.failures(session) == {}


def test_answers_before_a_death_are_none_after_it(context: AppContext, batch: Batch, engine: DirectedEngine) -> None:
    die(engine, 1, answered=2)
    run(context, batch)
    assert reload(context.database, batch).completed == 2
    with context.database.read() as session:
        assert holds.failures(session)["echo"].reason == REASON


def test_a_batch_whose_model_only_dies_ends_with_the_reason_after_some_attempts(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    for number in range(context.settings.segment_attempts):
        die(engine, 5, first=5 * number)
        run(context, batch)
    engine.starts = lambda: pytest.fail("the engine was started")
    run(context, batch)
    assert (reload(context.database, batch).failed, the_segment(context.database, batch).state) == (5, "done")


def test_a_held_batch_is_at_risk(connected: AppContext, project: str, engine: DirectedEngine) -> None:
    batch = plan_batch(connected, project, ["one"])
    die(engine, holds.FRUITLESS_DEATHS)
    run(connected, batch)
    deadlines.tick(connected)
    assert reload(connected.database, batch).sla == "at_risk"
