"""Housekeeping finds work whose holder died, at once where it can see that."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from batchyard.errors import ArtifactMissing, BatchyardError, UnavailableError
from store import batches, leases, schedules, segments, webhooks
from store.database import Database
from store.leases import acquire_batch
from store.records import Batch, Schedule, Segment, now
from store.work.lifecycle import FINISHING_SECONDS
from tasks import celery_app, heartbeat, housekeeping, idle, messages
from tasks.context import AppContext
from tasks.finishing import finalize
from tasks.heartbeat import hold_batch
from tasks.intake import validation
from tests.support.messages import SentMessages
from tests.support.planned import answers, finish_segment, plan_batch, reload


def dead() -> int:
    """The id of a process that was and is no more."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


@pytest.mark.parametrize(
    ("host", "pid", "free"),
    [(heartbeat.machine(), dead, True), (heartbeat.machine(), os.getpid, False), (socket.gethostname(), dead, False)],
    ids=["of a process that died", "of a living process", "of another machine of that name"],
)
def test_a_lease_ends_before_its_time_only_with_a_process_of_this_machine(
    context: AppContext,
    database: Database,
    new_batch: Callable[..., Batch],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    pid: Callable[[], int],
    free: bool,
) -> None:
    holder = f"{host}/{pid()}/task"
    running, finishing = new_batch(1), new_batch(1)
    with database.write() as session:
        segment_id = session.scalars(select(Segment.id).where(Segment.batch_id == running.id)).one()
        epoch = segments.dispatch(session, segment_id, 60)
        assert epoch is not None and segments.start(session, segment_id, epoch, holder, 60)
        session.get_one(Batch, finishing.id).status = "finalizing"
        assert acquire_batch(session, finishing.id, holder, 60)
    for name in ("segment", "finish"):
        monkeypatch.setattr(messages, name, lambda *_: None)
    housekeeping.recover(context)
    with database.read() as session:
        assert (session.get_one(Segment, segment_id).holder is None) == free
        assert (session.get_one(Batch, finishing.id).holder is None) == free


def test_a_holder_is_a_process_that_lives() -> None:
    assert not heartbeat.has_died(heartbeat.holder("task"))


@pytest.fixture
def no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is sent to work: the test does it."""
    for name in ("validate", "segment", "finish"):
        monkeypatch.setattr(messages, name, lambda *_: None)


def later(database: Database, **values: Any) -> None:
    """Let the pauses of all batches be over, and set these values."""
    with database.write() as session:
        session.execute(update(Batch).values(lease_expires_at=time.time() - 1, **values))


def the_error(batch: Batch) -> tuple[str, str]:
    """Code and message of a batch's only error."""
    assert batch.errors is not None
    (error,) = batch.errors
    return error["code"], error["message"]


def test_a_batch_whose_input_is_lost_ends_with_its_reason_when_its_window_does(
    context: AppContext, database: Database, new_batch: Callable[..., Batch], no_messages: None
) -> None:
    batch = new_batch()
    with pytest.raises(ArtifactMissing):
        validation.run(context, batch.id, "here/1/task")
    housekeeping.recover(context)
    assert reload(database, batch).status == "validating", "another attempt may succeed"
    later(database, expires_at=now())
    housekeeping.recover(context)
    batch = reload(database, batch)
    assert batch.status == "failed"
    code, message = the_error(batch)
    assert code == "validation_failed"
    assert "not validated in time" in message and "is missing in the artifact store" in message


def test_finishing_that_fails_without_end_ends_the_batch_with_its_reason(
    context: AppContext, database: Database, project: str, no_messages: None
) -> None:
    batch = plan_batch(context, project, ["one", "two"])
    finish_segment(context, batch, answers([1, 1]))  # a line twice: nothing may be published
    for _ in range(leases.ATTEMPTS):
        housekeeping.recover(context)
        assert reload(database, batch).status == "finalizing"
        later(database)
        with pytest.raises(BatchyardError):
            finalize.merge(context, batch.id, "here/1/task")
    housekeeping.recover(context)
    batch = reload(database, batch)
    assert (batch.status, batch.output_file_id) == ("failed", None)
    assert the_error(batch)[0] == "finishing_failed"
    assert "10 attempts: " in the_error(batch)[1] and "lines with two answers: 1" in the_error(batch)[1]


def test_work_that_kills_its_worker_each_time_ends_too(
    context: AppContext, database: Database, new_batch: Callable[..., Batch], no_messages: None
) -> None:
    batch = new_batch()
    for _ in range(leases.ATTEMPTS):
        assert reload(database, batch).status == "validating"
        with database.write() as session:
            assert acquire_batch(session, batch.id, "elsewhere/1/task", 60)
        later(database)
        housekeeping.recover(context)
        later(database)
    housekeeping.recover(context)
    batch = reload(database, batch)
    assert (batch.status, the_error(batch)[1]) == (
        "failed",
        "The batch could not be validated in 10 attempts: the worker that did it was lost",
    )


def test_a_cancelled_batch_that_cannot_be_finished_ends_as_cancelled(
    context: AppContext, database: Database, new_batch: Callable[..., Batch], no_messages: None
) -> None:
    batch = new_batch(1)
    with database.write() as session:
        batches.cancel(session, batch.project_id, batch.id)
    later(database, attempts=leases.ATTEMPTS, attempt_error="the plan is missing")
    housekeeping.recover(context)
    batch = reload(database, batch)
    assert (batch.status, the_error(batch)[0]) == ("cancelled", "finishing_failed")


def test_a_store_that_is_away_for_a_while_ends_no_batch(
    context: AppContext, database: Database, new_batch: Callable[..., Batch], no_messages: None
) -> None:
    batch = new_batch(1)
    with database.write() as session:
        assert batches.transition(session, batch.id, "in_progress", "finalizing", outcome="completed")
    for _ in range(leases.ATTEMPTS + 5):
        with pytest.raises(UnavailableError), hold_batch(context, batch.id, "here/1/task", 0.0):
            raise UnavailableError("artifact store s3://bucket cannot be read")
        housekeeping.recover(context)
    assert reload(database, batch).status == "finalizing"
    later(database, finalizing_at=now() - FINISHING_SECONDS)
    housekeeping.recover(context)
    assert reload(database, batch).status == "failed", "it has an end"


@pytest.fixture
def recoveries(monkeypatch: pytest.MonkeyPatch) -> list[AppContext]:
    """A list to which each look through all unfinished work adds an entry."""
    contexts: list[AppContext] = []
    monkeypatch.setattr(housekeeping, "recover", contexts.append)
    return contexts


def test_an_idle_deployment_is_looked_through_now_and_then_only(
    connected: AppContext, monkeypatch: pytest.MonkeyPatch, recoveries: list[AppContext]
) -> None:
    sent = SentMessages(monkeypatch)
    for _ in range(3):
        housekeeping.tick(connected)
    assert (len(recoveries), sent.ids("periodic")) == (1, ["housekeeping.deadlines"])


def test_unfinished_work_is_looked_through_at_each_tick_and_once_more_after_its_end(
    new_context: Callable[..., AppContext],
    broker: str,
    monkeypatch: pytest.MonkeyPatch,
    recoveries: list[AppContext],
    project: str,
) -> None:
    connected = new_context(redis_url=broker, forecast_seconds=3600)  # longer than this takes on a busy machine
    connected.redis.flushall()
    sent = SentMessages(monkeypatch)
    housekeeping.tick(connected)
    batch = plan_batch(connected, project, ["one"])
    for _ in range(3):
        housekeeping.tick(connected)
    assert len(recoveries) == 4
    assert sent.ids("periodic") == ["housekeeping.deadlines"], "a forecast is made every BATCHYARD_FORECAST_SECONDS"
    with connected.database.write() as session:
        session.get_one(Batch, batch.id).status = "completed"
    for _ in range(3):
        housekeeping.tick(connected)
    assert len(recoveries) == 5
    assert sent.ids("periodic") == 2 * ["housekeeping.deadlines"], "so its place in the queue is published no more"


def test_what_the_clock_makes_due_is_sent_in_an_idle_deployment_too(
    connected: AppContext, monkeypatch: pytest.MonkeyPatch, recoveries: list[AppContext]
) -> None:
    sent = SentMessages(monkeypatch)
    housekeeping.tick(connected)
    sent.calls.clear()
    monkeypatch.setattr(webhooks, "any_due", lambda _session, _at: True)
    monkeypatch.setattr(schedules, "due", lambda _session, at, limit: [Schedule(next_run_at=at - 60)][:limit])
    housekeeping.tick(connected)
    assert sorted(sent.ids("periodic")) == ["schedule.tick", "webhook.ring"]
    assert len(recoveries) == 1


def test_ticks_are_fewer_while_nothing_is_unfinished_and_nothing_is_due_soon(
    connected: AppContext, monkeypatch: pytest.MonkeyPatch, project: str
) -> None:
    SentMessages(monkeypatch)
    monkeypatch.setattr(celery_app, "_redis", lambda: connected.redis)
    now = datetime.now(UTC)
    ticks = celery_app.TickSchedule(2.0, nowfun=lambda: now)

    def due(seconds: float) -> bool:
        """True if beat sends a tick so long after the last one."""
        return bool(ticks.is_due(now - timedelta(seconds=seconds))[0])

    assert (due(1), due(3)) == (False, True), "nobody has looked yet"
    housekeeping.tick(connected)
    assert (due(3), due(9)) == (False, True)
    stored = pickle.loads(pickle.dumps(celery_app.TickSchedule(2.0)))
    assert stored.run_every == timedelta(seconds=2), "beat keeps its schedule in a file"
    with monkeypatch.context() as patched:
        patched.setattr(schedules, "due", lambda _session, at, limit: [Schedule(next_run_at=at - 2)][:limit])
        housekeeping.tick(connected)
    assert due(3)
    housekeeping.tick(connected)
    assert not due(3)
    idle.clear(connected.redis)
    assert due(3)
    plan_batch(connected, project, ["one"])
    housekeeping.tick(connected)
    assert due(3)


def test_while_redis_is_away_all_is_looked_through_at_each_tick(
    context: AppContext, monkeypatch: pytest.MonkeyPatch, recoveries: list[AppContext]
) -> None:
    SentMessages(monkeypatch)
    for _ in range(2):
        housekeeping.tick(context)
    assert len(recoveries) == 2
