"""A batch is planned, ends once all its segments have, and can be changed until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from batchyard.comparing import histogram
from batchyard.errors import ConflictError, RequestError
from batchyard.statuses import TRANSITIONS
from store import batches, events, queue, segments
from store.database import Database
from store.keys import Principal
from store.records import Batch, Segment

NewBatch = Callable[..., Batch]


def status(database: Database, batch: Batch) -> str:
    with database.read() as session:
        return session.get_one(Batch, batch.id).status


def test_a_batch_is_finished_once_every_segment_is_done_and_by_one_caller(
    database: Database, new_batch: NewBatch
) -> None:
    batch = new_batch(1, 1)
    with database.write() as session:
        session.execute(update(Batch).values(lease_expires_at=0.0))
        session.execute(update(Segment).where(Segment.number == 0).values(state="done"))
        batches.end_running(session)
        assert batches.claim_finishable(session, 60) == []
        session.execute(update(Segment).values(state="done"))
        batches.end_running(session)
        assert batches.claim_finishable(session, 60) == [batch.id]
        assert batches.claim_finishable(session, 60) == []
    assert status(database, batch) == "finalizing"


def test_a_plan_whose_requests_are_all_refused_is_done_and_counted(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch()
    with database.write() as session:
        batches.plan(
            session,
            batch,
            plan_sha256="1" * 64,
            segments=[Segment(model="echo", requests=3), Segment(model="other", requests=2)],
            models={"echo": {}, "other": {}},
            simulated=True,
            refused={0: "2" * 64, 1: "3" * 64},
        )
        assert segments.waiting(session, 10) == []
        batches.end_running(session)
    with database.read() as session:
        record = session.get_one(Batch, batch.id)
        assert (record.status, record.total, record.completed, record.failed) == ("finalizing", 5, 0, 5)
        assert segments.chunks(session, batch.id) == [("2" * 64, 3), ("3" * 64, 2)]


def test_of_a_plan_only_what_is_not_refused_is_left_to_run(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch()
    with database.write() as session:
        planned = [Segment(model="echo", requests=3), Segment(model="echo", requests=2)]
        models = {"echo": {"name": "echo", "engine": "echo"}}
        batches.plan(
            session, batch, plan_sha256="1" * 64, segments=planned, models=models, simulated=True, refused={0: "2" * 64}
        )
        (entry,) = segments.waiting(session, 10)
        assert (entry.number, entry.unanswered) == (1, 2)
        batches.end_running(session)
    assert status(database, batch) == "in_progress"


LIVES = st.lists(
    st.tuples(
        st.sampled_from(sorted(TRANSITIONS)),
        st.booleans(),
        st.lists(st.sampled_from(["pending", "dispatched", "running", "done"]), max_size=3),
    ),
    max_size=4,
)


@settings(max_examples=30)
@given(lives=LIVES)
def test_a_batch_ends_exactly_when_it_gets_no_more_segments_and_all_it_has_are_done(
    database: Database, new_batch: NewBatch, lives: list[tuple[str, bool, list[str]]]
) -> None:
    made = [new_batch(*[1] * len(states)) for _, _, states in lives]
    ids = [batch.id for batch in made]
    with database.read() as session:  # which rolls back what it wrote
        session.execute(update(Batch).where(Batch.id.not_in(ids)).values(status="completed"))
        for batch_id, (status, is_open, states) in zip(ids, lives, strict=True):
            session.execute(update(Batch).where(Batch.id == batch_id).values(status=status, open=is_open))
            for number, state in enumerate(states):
                own = (Segment.batch_id == batch_id, Segment.number == number)
                session.execute(update(Segment).where(*own).values(state=state))
        done = {
            batch_id
            for batch_id, (status, is_open, states) in zip(ids, lives, strict=True)
            if status == "in_progress" and not is_open and set(states) <= {"done"}
        }
        ending = any(status in ("finalizing", "cancelling") for status, _, _ in lives)
        assert batches.any_ends(session) is bool(done or ending)
        finalizing = {batch_id for batch_id, (status, _, _) in zip(ids, lives, strict=True) if status == "finalizing"}
        batches.end_running(session)
        now_finalizing = select(Batch.id).where(Batch.status == "finalizing")
        assert set(session.scalars(now_finalizing)) == finalizing | done


def test_a_cancelled_batch_waits_for_its_running_segments(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1, 1)
    with database.write() as session:
        session.execute(update(Batch).values(lease_expires_at=0.0))
        session.execute(update(Segment).where(Segment.number == 0).values(state="running", holder="w"))
        session.execute(update(Segment).where(Segment.number == 1).values(state="dispatched"))
        batches.cancel(session, batch.project_id, batch.id)
        segments.withdraw(session)
        assert [entry.number for entry in segments.active(session)] == [0]
        assert segments.running(session) == 1
        assert batches.claim_finishable(session, 60) == []
        session.execute(update(Segment).where(Segment.number == 0).values(state="done"))
        assert segments.running(session) == 0
        assert batches.claim_finishable(session, 60) == [batch.id]


def test_a_batch_past_its_window_expires_once(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1)
    with database.write() as session:
        assert batches.expire(session) == []
        session.execute(update(Batch).values(expires_at=int(time.time()) - 1))
        assert batches.expire(session) == [batch.id]
        assert batches.expire(session) == []


def acts(database: Database, batch: Batch) -> list[tuple[str, str | None]]:
    with database.read() as session:
        recorded, _ = events.page(session, batch, after=None, limit=100)
    return [(event.type, event.key_name) for event in recorded]


def changed(database: Database, me: Principal, batch: Batch, order: dict[str, Any], **metadata: str | None) -> Batch:
    with database.write() as session:
        return batches.change(session, me, batch.id, order, metadata)


def test_a_changed_priority_orders_the_projects_own_segments(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    first, second, third = (new_batch(1, due_after=seconds) for seconds in (10, 20, 30))
    changed(database, me, third, {"priority": 1})
    changed(database, me, first, {"priority": -1})
    with database.read() as session:
        waiting = segments.waiting(session, 2)
        assert [entry.batch_id for entry in waiting] == [third.id, second.id]
        assert [entry.priority for entry in waiting] == [1, 0]
        assert {entry.batch_id: entry.priority for entry in queue.backlog(session)} == {
            first.id: -1,
            second.id: 0,
            third.id: 1,
        }
    assert acts(database, third) == [("batch.changed", "ada")]


def test_name_and_description_are_metadata_that_can_be_changed_and_removed_also_after_the_end(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch = new_batch(1, request_metadata={"team": "a"})
    assert changed(database, me, batch, {}, name="nightly", description="first try").name == "nightly"
    with database.write() as session:
        batches.transition(session, batch.id, "in_progress", "finalizing", outcome="completed")
        batches.transition(session, batch.id, "finalizing", "completed")
    ended = changed(database, me, batch, {}, name=None, description="it was good")
    assert (ended.name, ended.request_metadata) == ("in.jsonl", {"team": "a", "description": "it was good"})
    with pytest.raises(ConflictError, match="deadline or the priority of a batch with status 'completed'"):
        changed(database, me, batch, {"priority": 1})
    assert changed(database, me, batch, {"priority": 0}, name="same").priority == 0, "nothing of its order changes"


def test_metadata_stays_within_its_limit(database: Database, new_batch: NewBatch, me: Principal) -> None:
    batch = new_batch(1, request_metadata={str(number): "x" for number in range(16)})
    with pytest.raises(RequestError, match="16 entries"):
        changed(database, me, batch, {}, name="one more")


def test_of_two_changes_at_once_neither_loses_what_the_other_has_set(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch = new_batch(1, request_metadata={"team": "a"})
    with ThreadPoolExecutor(1) as other:
        with database.write() as session:
            batches.change(session, me, batch.id, {}, {"name": "nightly"})
            second = other.submit(changed, database, me, batch, {}, description="first try")
            with pytest.raises(TimeoutError):
                second.result(0.5)  # it waits for the first one
        entries = second.result(60).request_metadata
    assert entries == {"team": "a", "name": "nightly", "description": "first try"}


def test_the_latest_latencies_are_those_of_batches_that_run_or_are_new(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    batch = new_batch(10)
    with database.write() as session:
        session.get_one(Batch, batch.id).latencies = {"echo": {"decode": dict(histogram.of([1.0]))}}
        session.flush()
        assert len(batches.latest_latencies(session, project, time.time())) == 1
        assert len(batches.latest_latencies(session, None, time.time())) == 1
        assert batches.latest_latencies(session, "another", time.time()) == []
        later = time.time() + batches.LATEST_SECONDS + 10
        assert len(batches.latest_latencies(session, project, later)) == 1
        session.get_one(Batch, batch.id).status = "completed"
        session.flush()
        assert batches.latest_latencies(session, project, later) == []
