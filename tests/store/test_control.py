"""A batch can be paused, resumed and changed, inside its project only, and who did it is on record."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select, update

from batchyard.errors import ConflictError, NotFoundError, RequestError
from store import batches, events, queue, retention, segments
from store.database import Database
from store.jobs import lifecycle, stages
from store.keys import Principal
from store.records import Batch, Event, Segment
from tests.support.jobs import open_stage, planned, start_job
from tests.support.planned import reload, started, the_segment

NewBatch = Callable[..., Batch]


@pytest.fixture
def me(project: str) -> Principal:
    return Principal(project, False, "key-1", "ada")


def acts(database: Database, batch: Batch) -> list[tuple[str, str | None]]:
    with database.read() as session:
        recorded, _ = events.page(session, batch, after=None, limit=100)
    return [(event.type, event.key_name) for event in recorded]


def pause(database: Database, me: Principal, batch: Batch) -> Batch:
    with database.write() as session:
        return batches.pause(session, me, batch.id)


def resume(database: Database, me: Principal, batch: Batch) -> Batch:
    with database.write() as session:
        return batches.resume(session, me, batch.id)


def test_a_paused_batch_starts_nothing_and_stands_in_nobodys_way_until_it_is_resumed(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch, other = new_batch(10), new_batch(20)
    paused = pause(database, me, batch)
    assert (paused.status, paused.paused_by) == ("in_progress", "ada")
    assert paused.paused_at is not None and abs(paused.paused_at - time.time()) < 5
    with database.read() as session:
        assert {entry.batch_id for entry in segments.waiting(session, 10)} == {other.id}
        assert {entry.batch_id for entry in queue.backlog(session)} == {other.id}
        snapshot = queue.snapshot(session)
        assert (snapshot.paused, snapshot.batches["in_progress"]) == (1, 2)
        assert [(model.pending_segments, model.waiting_requests) for model in snapshot.models] == [(1, 20)]
        assert segments.dispatch(session, the_segment(database, batch).id, 60) is None
    resume(database, me, batch)
    with database.read() as session:
        assert {entry.batch_id for entry in segments.waiting(session, 10)} == {batch.id, other.id}
        assert len(queue.backlog(session)) == 2


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
        segment = batches.PlannedSegment("echo", 3)
        batches.plan(session, batch, plan_sha256="1" * 64, segments=[segment], models={"echo": {}}, simulated=True)
    with database.read() as session:
        assert session.get_one(Batch, batch.id).status == "in_progress"
        assert segments.waiting(session, 10) == []


def test_a_message_that_comes_after_the_pause_gives_the_segment_back(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch = new_batch(1)
    segment_id = the_segment(database, batch).id
    with database.write() as session:
        epoch = segments.dispatch(session, segment_id, 60)
        assert epoch is not None
    pause(database, me, batch)
    with database.write() as session:
        assert segments.start(session, segment_id, epoch, "here/1/task", 60) is None
    resume(database, me, batch)
    assert the_segment(database, batch).state == "pending", "no other message of this epoch would come"
    started(database, batch)


def test_a_running_segment_hears_of_the_pause_and_makes_room_at_once(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch = new_batch(5)
    lease = started(database, batch)

    def renewed() -> str:
        with database.write() as session:
            return segments.renew(session, lease, 60)

    assert renewed() == "run"
    pause(database, me, batch)
    assert renewed() == "pause"
    with database.read() as session:
        (active,) = segments.active(session)
    assert active.unanswered == 0
    with database.write() as session:
        segments.end(session, lease, done=False, engine=None)
    assert the_segment(database, batch).state == "pending"
    with database.write() as session:
        batches.cancel(session, me.project_id, batch.id, me)
    assert reload(database, batch).paused_at is None


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


def test_a_paused_job_pauses_its_batches_also_those_to_come(database: Database, me: Principal) -> None:
    with database.write() as session:
        job = start_job(session, me.project_id)
        first = open_stage(session, job)
        stages.extend(session, first.id, [planned(5)])
    with database.write() as session:
        assert lifecycle.pause(session, me, job.id).paused_by == "ada"
        second = open_stage(session, job, 1, "judge")
        stages.extend(session, second.id, [planned(5, plan="2")])
    with database.write() as session:
        assert {session.get_one(Batch, batch.id).paused_by for batch in (first, second)} == {"ada"}
        assert segments.waiting(session, 10) == []
        lifecycle.resume(session, me, job.id)
        assert len(segments.waiting(session, 10)) == 2
        lifecycle.cancel(session, me.project_id, job.id, me)
        with pytest.raises(ConflictError, match="Cannot pause a job with status 'cancelling'"):
            lifecycle.pause(session, me, job.id)
        recorded, _ = events.page(session, session.get_one(type(job), job.id), after=None, limit=9)
        assert [event.type for event in recorded] == ["job.paused", "job.resumed", "job.cancelling"]


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


def test_who_did_what_is_listed_newest_first_and_stays_as_long_as_the_batch(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch, later = new_batch(1), time.time() + 10
    pause(database, me, batch)
    with database.write() as session:
        events.act(session, me, "file.deleted", "file-1")
        events.act(session, None, "batch.cancelling", batch)
        batches.transition(session, batch.id, "in_progress", "finalizing", outcome="completed")
        batches.transition(session, batch.id, "finalizing", "completed")
    with database.read() as session:
        listed, more = events.actions(session, me.project_id, after=None, limit=1)
        assert ([event.type for event in listed], more) == (["file.deleted"], True)
        rest, more = events.actions(session, None, after=listed[0].id, limit=5)
        assert ([event.type for event in rest], more) == (["batch.paused"], False)
        assert events.actions(session, "proj_other", after=None, limit=5) == ([], False)

    def purge(olds: list[retention.Old]) -> None:
        with database.write() as session:
            for old in olds:
                retention.purge(session, old, retention.find(session, old))

    purge(retention.events(later))
    with database.read() as session:
        assert set(session.scalars(select(Event.type))) == {"file.deleted", "batch.paused"}
        olds = [*retention.batches(session, later), *retention.others(later, later)]
    purge(olds)
    with database.read() as session:
        assert (session.scalars(select(Event.type)).all(), session.scalars(select(Batch.id)).all()) == ([], [])


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
