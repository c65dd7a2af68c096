"""A lease lives while its work goes on, and no longer; the work stops once nobody wants it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import select, update

from batchyard.errors import ArtifactMissing, LeaseLost, UnavailableError
from store.database import Database
from store.leases import Lease, acquire_batch
from store.records import Batch
from tasks.context import AppContext
from tasks.heartbeat import BACKOFF, Heartbeat, has_died, hold_batch, holder, machine
from tests.support.planned import reload
from tests.support.rows import until

NewBatch = Callable[..., Batch]
INTERVAL = 0.01


class Beats:
    """A `beat` that returns or raises its answers in turn, then the last one for ever."""

    def __init__(self, *answers: bool | Exception) -> None:
        self._answers = list(answers)
        self.count = 0

    def __call__(self) -> bool:
        self.count += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_heartbeat_beats_until_its_block_ends() -> None:
    beats = Beats(True)
    with Heartbeat(beats, INTERVAL) as heartbeat:
        until(lambda: beats.count >= 3)
    assert not heartbeat.stopped.is_set()
    count = beats.count
    threading.Event().wait(5 * INTERVAL)
    assert beats.count == count


def test_work_that_nobody_wants_is_stopped_and_its_lease_renewed_no_more() -> None:
    beats = Beats(True, False)
    with Heartbeat(beats, INTERVAL) as heartbeat:
        assert heartbeat.stopped.wait(30)
        threading.Event().wait(5 * INTERVAL)
    assert beats.count == 2


def test_work_whose_lease_is_lost_is_stopped() -> None:
    beats = Beats(True, LeaseLost("segments 1: epoch 1 is gone"))
    with Heartbeat(beats, INTERVAL) as heartbeat:
        assert heartbeat.stopped.wait(30)
    assert beats.count == 2


def test_a_database_that_is_away_for_a_while_stops_no_work() -> None:
    beats = Beats(UnavailableError("the database is away"), UnavailableError("the database is away"), True)
    with Heartbeat(beats, INTERVAL) as heartbeat:
        until(lambda: beats.count >= 4)
        assert not heartbeat.stopped.is_set()


def test_work_that_others_stop_keeps_its_lease_until_it_has_ended() -> None:
    beats = Beats(True)
    with Heartbeat(beats, INTERVAL) as heartbeat:
        heartbeat.stopped.set()
        count = beats.count
        until(lambda: beats.count >= count + 3)


def test_a_batch_has_one_holder_and_the_second_gets_none(context: AppContext, new_batch: NewBatch) -> None:
    batch = new_batch()
    with hold_batch(context, batch.id, "worker-1", 0.0) as first:
        assert first is not None
        with hold_batch(context, batch.id, "worker-2", 0.0) as second:
            assert second is None
        with context.database.write() as session:
            first.guard(session)  # the second one took nothing from it


def test_a_batch_is_given_back_when_its_work_is_over(context: AppContext, new_batch: NewBatch) -> None:
    batch = new_batch()
    with hold_batch(context, batch.id, "worker-1", 0.0) as first:
        assert first is not None
    assert not first.held
    with hold_batch(context, batch.id, "worker-2", 0.0) as second:
        assert second is not None
        assert second.epoch > first.epoch


def test_a_batch_is_given_back_when_its_work_fails(context: AppContext, new_batch: NewBatch) -> None:
    batch = new_batch()
    with pytest.raises(RuntimeError), hold_batch(context, batch.id, "worker-1", 0.0):
        raise RuntimeError
    with context.database.read() as session:
        assert session.get_one(Batch, batch.id).holder is None


def test_a_lease_that_the_work_gave_back_itself_is_left_alone(context: AppContext, new_batch: NewBatch) -> None:
    batch = new_batch()
    with hold_batch(context, batch.id, "worker-1", 0.0) as lease:
        assert lease is not None
        with context.database.write() as session:
            lease.release(session)
        other = acquire(context.database, batch, "worker-2")
    with context.database.write() as session:
        other.guard(session)


def test_a_holder_that_lost_its_batch_meanwhile_leaves_the_other_ones_lease(
    context: AppContext, new_batch: NewBatch
) -> None:
    batch = new_batch()
    with hold_batch(context, batch.id, "worker-1", 0.0) as lease:
        assert lease is not None
        with context.database.write() as session:
            session.execute(update(Batch).where(Batch.id == batch.id).values(lease_expires_at=0.0))
        other = acquire(context.database, batch, "worker-2")
    with context.database.read() as session:
        assert session.get_one(Batch, batch.id).holder == "worker-2"
    with context.database.write() as session:
        other.guard(session)


def test_a_batch_is_held_for_as_long_as_its_work_takes(
    new_context: Callable[..., AppContext], new_batch: NewBatch
) -> None:
    batch, context = new_batch(), new_context(lease_seconds=1)

    def expires_at() -> float:
        with context.database.read() as session:
            return session.scalars(select(Batch.lease_expires_at).where(Batch.id == batch.id)).one() or 0.0

    with hold_batch(context, batch.id, "worker-1", 0.0):
        first = expires_at()
        until(lambda: expires_at() > first)


def test_only_a_process_of_this_machine_that_is_no_more_has_died() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert has_died(f"{machine()}/{ended.pid}/task")
    assert not has_died(holder("task"))
    assert not has_died(f"another-host/{ended.pid}/task"), "its process ids say nothing here"


def test_a_holder_names_its_machine_process_and_task() -> None:
    assert holder("a/task") == f"{machine()}/{os.getpid()}/a/task"
    assert "/" not in machine()


def acquire(database: Database, batch: Batch, name: str) -> Lease:
    with database.write() as session:
        lease = acquire_batch(session, batch.id, name, 60)
    assert lease is not None
    return lease


@pytest.mark.usefixtures("frozen_time")
def test_a_failed_attempt_is_recorded_with_its_reason_and_a_success_forgets_it(
    context: AppContext, new_batch: NewBatch
) -> None:
    batch = new_batch()
    for attempts in (1, 2):
        with pytest.raises(RuntimeError), hold_batch(context, batch.id, "worker-1", 0.0):
            raise RuntimeError("bucket 7 is broken")
        record = reload(context.database, batch)
        assert (record.attempts, record.attempt_error) == (attempts, "RuntimeError: bucket 7 is broken")
        assert 0 < (record.lease_expires_at or 0) - time.time() <= BACKOFF.seconds(attempts)
    with hold_batch(context, batch.id, "worker-1", 0.0):
        pass
    record = reload(context.database, batch)
    assert (record.attempts, record.attempt_error) == (0, None)


def test_a_part_that_is_away_costs_no_attempt_and_lost_content_does(context: AppContext, new_batch: NewBatch) -> None:
    batch = new_batch()
    for error, attempts in ((UnavailableError("S3 is away"), 0), (ArtifactMissing("content is missing"), 1)):
        with pytest.raises(UnavailableError), hold_batch(context, batch.id, "worker-1", 0.0):
            raise error
        record = reload(context.database, batch)
        assert (record.attempts, record.attempt_error) == (attempts, error.message)


def test_an_error_of_the_beat_itself_stops_no_heartbeat() -> None:
    beats = Beats(RuntimeError("a fault"), True)
    with Heartbeat(beats, INTERVAL) as heartbeat:
        until(lambda: beats.count >= 3)
        assert not heartbeat.stopped.is_set()
