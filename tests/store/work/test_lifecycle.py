"""Batches and jobs change their status by a table of transitions, each once, and inside their project only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from batchyard.errors import ConflictError, NotFoundError, RequestError
from batchyard.statuses import TERMINAL, TRANSITIONS
from store import batches, events, segments
from store.database import Database
from store.keys import Principal
from store.records import Batch, Segment
from tests.support.jobs import create_job, open_stage, start_job
from tests.support.planned import pause, reload, resume, started

NewBatch = Callable[..., Batch]


def acts(database: Database, batch: Batch) -> list[tuple[str, str | None]]:
    with database.read() as session:
        recorded, _ = events.page(session, batch, after=None, limit=100)
    return [(event.type, event.key_name) for event in recorded]


def test_pausing_and_resuming_twice_changes_nothing_and_is_on_record_once(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch = new_batch(1)
    first = pause(database, me, batch)
    with database.write() as session:
        session.execute(update(Batch).values(paused_at=7))
    second = pause(database, Principal(me.project_id, False, "key-2", "bob"), batch)
    assert (first.paused_by, second.paused_by, second.paused_at) == ("ada", "ada", 7)
    for _ in range(2):
        assert resume(database, me, batch).paused_at is None
    assert acts(database, batch) == [("batch.paused", "ada"), ("batch.resumed", "ada")]


def test_what_has_no_request_left_to_send_cannot_be_paused(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch = new_batch(1)
    with database.write() as session:
        batches.transition(session, batch.id, "in_progress", "finalizing", outcome="completed")
    for verb, call in (("pause", pause), ("resume", resume)):
        with pytest.raises(ConflictError, match=rf"^Cannot {verb} a batch with status 'finalizing'\.$"):
            call(database, me, batch)
    assert acts(database, batch) == []


def test_a_batch_of_another_project_or_of_a_job_cannot_be_paused_or_changed(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch, stranger = new_batch(1), Principal("proj_other", True, "key-2", "eve")
    with database.write() as session:
        job = start_job(session, me.project_id)
        stage = open_stage(session, job)

    def change(database: Database, by: Principal, batch: Batch) -> Batch:
        with database.write() as session:
            return batches.change(session, by, batch.id, {"priority": 1}, {})

    for call in (pause, resume, change):
        with pytest.raises(NotFoundError):
            call(database, stranger, batch)
        with pytest.raises(ConflictError, match=f"of job '{job.id}'"):
            call(database, me, stage)


def test_a_batch_that_is_paused_while_it_is_validated_starts_nothing_afterwards(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch = new_batch()
    pause(database, me, batch)
    with database.write() as session:
        segment = Segment(model="echo", requests=3)
        batches.plan(session, batch, plan_sha256="1" * 64, segments=[segment], models={"echo": {}}, simulated=True)
    with database.read() as session:
        assert session.get_one(Batch, batch.id).status == "in_progress"
        assert segments.waiting(session, 10) == []


def test_a_paused_batch_whose_last_answers_were_on_their_way_ends(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch = new_batch(5)
    lease = started(database, batch)
    pause(database, me, batch)
    with database.write() as session:
        session.execute(update(Segment).values(answered=5))
        segments.end(session, lease, done=False, engine=None)
        batches.end_running(session)
    ended = reload(database, batch)
    assert (ended.status, ended.outcome, ended.paused_at) == ("finalizing", "completed", None)


def test_the_window_of_a_paused_batch_goes_on(database: Database, new_batch: NewBatch, me: Principal) -> None:
    batch = new_batch(1)
    pause(database, me, batch)
    with database.write() as session:
        session.execute(update(Batch).values(expires_at=int(time.time()) - 1))
        assert batches.expire(session) == [batch.id]
    assert reload(database, batch).paused_at is None


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


def test_what_was_created_with_a_key_is_found_by_it_and_another_body_is_a_conflict(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch = new_batch(1)
    with database.write() as session:
        session.execute(update(Batch).values(idempotency_key="key", idempotency_sha256="a" * 64))
    with database.read() as session:
        again = batches.repeated(session, me.project_id, ("key", "a" * 64))
        assert again is not None and again.id == batch.id
        assert batches.repeated(session, "proj_other", ("key", "b" * 64)) is None
        with pytest.raises(
            ConflictError, match=r"conflicts with an earlier one.*Use a new key for a new batch"
        ) as refused:
            batches.repeated(session, me.project_id, ("key", "b" * 64))
    assert refused.value.code == "idempotency_key_reused"


def test_retries_are_listed_oldest_first_of_each_batch(database: Database, new_batch: NewBatch) -> None:
    batch, other = new_batch(1), new_batch(1)
    retries = [new_batch(1, retry_of=batch.id) for _ in range(2)]
    with database.read() as session:
        assert batches.retries(session, [batch.id, other.id]) == {
            batch.id: [retry.id for retry in retries],
            other.id: [],
        }


def test_an_invalid_input_ends_a_batch_with_its_errors_also_one_that_is_being_cancelled(
    database: Database, new_batch: NewBatch
) -> None:
    invalid, cancelled = new_batch(), new_batch()
    errors = [{"code": "invalid_json", "line": 1, "message": "Line 1 is no JSON.", "param": None}]
    with database.write() as session:
        batches.cancel(session, cancelled.project_id, cancelled.id)
        for batch in (invalid, cancelled):
            batches.reject(session, batch.id, errors)
    assert (reload(database, invalid).status, reload(database, invalid).errors) == ("failed", errors)
    assert (reload(database, cancelled).status, reload(database, cancelled).errors) == ("cancelled", errors)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attempts": 10}, "The batch could not be validated in 10 attempts: no disk"),
        ({"attempts": 1, "expires_at": 1}, "The batch was not validated in time; the last attempt failed: no disk"),
        ({"attempts": 9}, None),
        ({"expires_at": 1, "attempt_error": None}, None),
    ],
)
def test_a_validation_that_fails_without_end_ends_the_batch(
    database: Database, new_batch: NewBatch, values: dict[str, Any], message: str | None
) -> None:
    batch = new_batch()
    with database.write() as session:
        session.execute(update(Batch).values({"attempt_error": "no disk", "epoch": 3, "holder": "here"} | values))
        assert batches.give_up(session) == ([batch.id] if message else [])
    ended = reload(database, batch)
    assert (ended.status, ended.epoch) == (("failed", 4) if message else ("validating", 3))
    assert [error["message"] for error in ended.errors or []] == ([message] if message else [])


def test_a_job_waits_if_it_depends_on_others(database: Database, project: str) -> None:
    with database.write() as session:
        first = create_job(session, project)
        second = create_job(session, project, depends_on=[first.id])
    assert (first.status, second.status) == ("validating", "waiting")
    assert second.expires_at == second.created_at + 86400 == second.due_at


def test_a_tier_can_make_work_due_before_its_window_ends(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(due_after=60)
    assert (batch.due_at, batch.expires_at) == (batch.created_at + 60, batch.created_at + 86400)
