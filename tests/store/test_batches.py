"""Statuses move along one table, by compare-and-set."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from batchyard.errors import ConflictError, NotFoundError, RequestError
from batchyard.statuses import TERMINAL, TRANSITIONS
from store import batches, events, segments
from store.batches import PlannedSegment
from store.database import Database
from store.records import Batch, ResultChunk, Segment

NewBatch = Callable[..., Batch]


def status(database: Database, batch: Batch) -> str:
    with database.read() as session:
        return session.get_one(Batch, batch.id).status


@given(st.lists(st.sampled_from(sorted(TRANSITIONS)), max_size=12))
def test_no_path_leaves_a_terminal_status(path: list[str]) -> None:
    current = "validating"
    for following in path:
        if following in TRANSITIONS[current]:
            assert current not in TERMINAL
            current = following


def test_every_status_can_reach_a_terminal_one() -> None:
    reaching = set(TERMINAL)
    while more := {s for s, following in TRANSITIONS.items() if following & reaching} - reaching:
        reaching |= more
    assert reaching == set(TRANSITIONS)


def test_the_side_that_loses_a_transition_changes_nothing(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1)
    with database.write() as session:
        assert batches.transition(session, batch.id, "in_progress", "finalizing", outcome="completed")
        assert not batches.transition(session, batch.id, "in_progress", "cancelling", outcome="cancelled")
    with database.read() as session:
        record = session.get_one(Batch, batch.id)
    assert (record.status, record.outcome, record.cancelling_at) == ("finalizing", "completed", None)


def test_a_transition_that_the_table_does_not_have_is_a_fault(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1)
    with pytest.raises(ValueError, match="never goes from completed"), database.write() as session:
        batches.transition(session, batch.id, "completed", "in_progress")


def test_cancelling_twice_is_fine_and_cancelling_the_ended_is_a_conflict(
    database: Database, new_batch: NewBatch
) -> None:
    batch = new_batch(1)
    with database.write() as session:
        assert batches.cancel(session, batch.project_id, batch.id).status == "cancelling"
        assert batches.cancel(session, batch.project_id, batch.id).status == "cancelling"
        batches.transition(session, batch.id, "cancelling", "cancelled")
        assert batches.cancel(session, batch.project_id, batch.id).status == "cancelled"
    ended = new_batch(1)
    with database.write() as session:
        batches.transition(session, ended.id, "in_progress", "finalizing", outcome="completed")
        batches.transition(session, ended.id, "finalizing", "completed")
    with (
        pytest.raises(ConflictError, match=r"^Cannot cancel a batch with status 'completed'\.$"),
        database.write() as session,
    ):
        batches.cancel(session, ended.project_id, ended.id)


def test_another_projects_batch_is_not_there(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1)
    with database.read() as session:
        for call in (batches.get, batches.cancel):
            with pytest.raises(NotFoundError, match=f"^No batch found with id '{batch.id}'.$"):
                call(session, "proj_other", batch.id)
        assert batches.page(session, "proj_other", after=None, limit=20) == ([], False)


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
            segments=[PlannedSegment("echo", 3), PlannedSegment("other", 2)],
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
        planned = [PlannedSegment("echo", 3), PlannedSegment("echo", 2)]
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


def test_a_list_walked_while_batches_are_made_shows_each_once(database: Database, new_batch: NewBatch) -> None:
    created = [new_batch().id for _ in range(7)]
    listed: list[str] = []
    more, after = True, None
    while more:
        with database.read() as session:
            page, more = batches.page(session, new_batch().project_id, after=after, limit=2)
        listed += [batch.id for batch in page]
        after = listed[-1]
    assert [batch_id for batch_id in listed if batch_id in created] == created[::-1]
    assert len(set(listed)) == len(listed)


def test_an_unknown_cursor_is_refused(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch()
    with database.read() as session, pytest.raises(RequestError, match="no object with id 'batch_nope'"):
        batches.page(session, batch.project_id, after="batch_nope", limit=2)


def test_an_sla_state_is_told_of_once_however_often_it_comes_back(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(10)
    changes = []
    for state in ("at_risk", "on_track", "at_risk", "late", "on_track"):
        with database.write() as session:
            current = session.get_one(Batch, batch.id)
            changes.append((state, batches.set_sla(session, current, state)))
    assert changes == [("at_risk", True), ("on_track", True), ("at_risk", False), ("late", True), ("on_track", False)]
    with database.read() as session:
        emitted, _ = events.page(session, batch, after=None, limit=10)
    assert [event.type for event in emitted] == ["batch.at_risk", "batch.on_track", "batch.late"]


def test_of_two_that_set_the_same_sla_state_one_tells_of_it(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(10)
    for first in (True, False):
        with database.write() as session:
            assert batches.set_sla(session, batch, "late") is first


def test_a_timeline_has_few_points_and_all_that_was_answered(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(5000)
    with database.write() as session:
        assert segments.timeline(session, batch) == []
        segment_id = session.scalars(select(Segment.id)).one()
        for number in range(2000):
            values = {"completed": 2, "failed": 1, "input_tokens": 5, "output_tokens": 5, "cached_tokens": 0}
            at = batch.created_at + 1 + number / 2
            session.add(
                ResultChunk(
                    batch_id=batch.id, segment_id=segment_id, sha256=secrets.token_hex(32), created_at=at, **values
                )
            )
    with database.read() as session:
        points = segments.timeline(session, batch)
    assert 100 < len(points) <= segments.TIMELINE + 2
    assert points[0] == [batch.created_at, 0, 0, 0]
    assert points[-1] == [pytest.approx(batch.created_at + 1000.5, abs=0.1), 6000, 20_000, 2000]
    assert all(before < after for before, after in itertools.pairwise(points))
