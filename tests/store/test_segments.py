"""A segment is dispatched, started, appended to and ended by one holder at a time, and stops with its batch."""

from __future__ import annotations

import itertools
import math
import secrets
import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import delete, select, update

from batchyard import latency
from batchyard.comparing import histogram
from batchyard.errors import LeaseLost
from batchyard.statuses import BACKGROUND
from store import batches, queue, segments
from store.database import Database
from store.keys import Principal
from store.records import Batch, ResultChunk, Segment
from store.segments import SegmentLease
from tests.support.planned import a_chunk, dispatched, pause, reload, resume, started, the_segment

NewBatch = Callable[..., Batch]


@pytest.mark.usefixtures("frozen_time")
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


def start(database: Database) -> list[SegmentLease]:
    """Start every pending segment, in the order of their ids."""
    leases = []
    with database.write() as session:
        for segment_id in session.scalars(select(Segment.id).order_by(Segment.id)).all():
            epoch = segments.dispatch(session, segment_id, 60)
            lease = segments.start(session, segment_id, epoch or 0, "worker", 60)
            assert lease is not None
            leases.append(lease)
    return leases


def append(database: Database, lease: SegmentLease, name: str, seconds: list[float]) -> None:
    """Append a chunk of answers that took so long. `name` is a hexadecimal digit."""
    with database.write() as session:
        chunk = ResultChunk(
            batch_id=lease.batch_id,
            segment_id=lease.lease.id,
            sha256=name * 64,
            completed=len(seconds),
            failed=0,
            created_at=time.time(),
        )
        segments.append(session, lease, chunk, histogram.of(seconds))


def summary(database: Database, batch: Batch) -> latency.Latency | None:
    with database.read() as session:
        return latency.summary(session.get_one(Batch, batch.id).latencies)


def test_a_batch_has_no_percentiles_before_a_request_was_measured(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(10)
    (lease,) = start(database)
    assert summary(database, batch) is None
    append(database, lease, "a", [])
    assert summary(database, batch) is None


def test_chunks_of_a_segment_add_up_and_their_deletion_changes_nothing(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(200)
    (lease,) = start(database)
    append(database, lease, "a", [0.1] * 90)
    append(database, lease, "b", [1.0] * 8 + [10.0] * 2)
    append(database, lease, "b", [1.0] * 8 + [10.0] * 2)  # its COMMIT was unclear
    with database.write() as session:
        session.execute(delete(ResultChunk))
    measured = summary(database, batch)
    assert measured is not None
    assert measured.requests == 100
    assert [measured.p50, measured.p95, measured.p99] == pytest.approx([0.1, 1.0, 10.0], rel=0.02)


def test_models_and_classes_have_their_own(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(10, 10, 10)
    with database.write() as session:
        for segment, (model, kind) in zip(
            session.scalars(select(Segment).order_by(Segment.id)),
            [("one", "decode"), ("one", "prefill"), ("two", "decode")],
            strict=True,
        ):
            segment.model, segment.request_class = model, kind
        config = {"name": "one", "engine": "echo"}
        session.get_one(Batch, batch.id).models = {"one": config, "two": config | {"name": "two"}}
    for lease, seconds in zip(start(database), (1.0, 2.0, 4.0), strict=True):
        append(database, lease, "a", [seconds])
    measured = summary(database, batch)
    assert measured is not None
    assert measured.p99 == pytest.approx(4.0, rel=0.02)
    one, two = measured.models["one"], measured.models["two"]
    assert [one.requests, one.p50, one.p99] == pytest.approx([2, 1.0, 2.0], rel=0.02)
    assert {kind: entry.p50 for kind, entry in one.classes.items()} == {
        "decode": pytest.approx(1.0, rel=0.02),
        "prefill": pytest.approx(2.0, rel=0.02),
    }
    assert list(two.classes) == ["decode"]


def test_segments_that_append_at_once_lose_no_measurement(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(100, 100)

    def work(lease: SegmentLease) -> None:
        for name in "0123456789abcdef":
            append(database, lease, name, [0.5] * 5)

    threads = [threading.Thread(target=work, args=(lease,)) for lease in start(database)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    measured = summary(database, batch)
    assert measured is not None
    assert measured.requests == 160


def test_a_former_holder_adds_nothing(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(10)
    (lease,) = start(database)
    with database.write() as session:
        session.get_one(Segment, lease.lease.id).epoch += 1
    with pytest.raises(LeaseLost):
        append(database, lease, "a", [1.0])
    assert summary(database, batch) is None


def let_the_lease_run_out(database: Database, segment_id: object) -> None:
    with database.write() as session:
        session.execute(update(Segment).where(Segment.id == segment_id).values(lease_expires_at=time.time() - 1))


def test_a_message_that_is_delivered_twice_starts_its_segment_once(database: Database, new_batch: NewBatch) -> None:
    segment = started(database, new_batch(10))
    with database.write() as session:
        assert segments.start(session, int(segment.lease.id), segment.lease.epoch, "worker-2", 60) is None


def test_a_segment_is_dispatched_to_one_of_two_dispatchers(database: Database, new_batch: NewBatch) -> None:
    new_batch(10)
    with database.read() as session:
        segment_id = session.scalars(select(Segment.id)).one()
    with database.write() as session:
        assert segments.dispatch(session, segment_id, 60) == 1
    with database.write() as session:
        assert segments.dispatch(session, segment_id, 60) is None


def test_what_a_dead_holder_appended_is_there_for_the_next(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(10)
    first = started(database, batch)
    with database.write() as session:
        segments.append(session, first, a_chunk(first))
    let_the_lease_run_out(database, first.lease.id)
    with database.write() as session:
        segments.recover(session)
    assert started(database, batch).chunks == ["2" * 64]


def test_a_holder_learns_when_its_batch_is_cancelled(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(10)
    segment = started(database, batch)
    with database.write() as session:
        batches.cancel(session, batch.project_id, batch.id)
        assert segments.renew(session, segment, 60) == "stop"


def test_the_most_urgent_segments_of_each_model_and_project_wait_first(database: Database, new_batch: NewBatch) -> None:
    late, soon = new_batch(1, 1, due_after=20), new_batch(1, due_after=10)
    other = new_batch(1, model="other", due_after=30)
    with database.read() as session:
        pending = segments.waiting(session, 2)
    assert sorted((entry.model, entry.batch_id, entry.number) for entry in pending) == sorted(
        [("echo", soon.id, 0), ("echo", late.id, 0), ("other", other.id, 0)]
    )
    assert min(pending).batch_id == soon.id, "entries sort by urgency"


def test_a_segment_that_failed_waits_until_its_pause_is_over(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(5)
    for delay, counted in ((60.0, True), (0.0, False)):
        lease = started(database, batch)
        with database.write() as session:
            segments.fail(session, lease, "the engine died", delay, counted=counted)
            assert segments.any_waits(session)
            assert len(segments.waiting(session, 10)) == (delay == 0)
    segment = the_segment(database, batch)
    assert (segment.state, segment.attempts, segment.error) == ("pending", 1, "the engine died")


def test_a_result_chunk_ends_the_count_of_attempts_and_counts_once(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(5)
    lease = started(database, batch)
    with database.write() as session:
        segments.fail(session, lease, "the engine died", 0, counted=True)
    lease = started(database, batch)
    assert (lease.attempts, lease.error) == (1, "the engine died")
    with database.write() as session:
        assert segments.append(session, lease, a_chunk(lease, completed=3))
        assert not segments.append(session, lease, a_chunk(lease, completed=3)), "the first COMMIT was unclear"
        assert segments.answered(session, batch.id, "echo") and not segments.answered(session, batch.id, "other")
    segment = the_segment(database, batch)
    assert (segment.attempts, segment.answered) == (0, 3)
    assert (reload(database, batch).completed, reload(database, batch).input_tokens) == (3, 3)


@pytest.mark.parametrize(("answered", "state"), [(4, "pending"), (5, "done")])
def test_a_released_segment_is_done_once_all_its_requests_are_answered(
    database: Database, new_batch: NewBatch, answered: int, state: str
) -> None:
    batch = new_batch(5)
    lease = started(database, batch)
    with database.write() as session:
        segments.append(session, lease, a_chunk(lease, completed=answered))
        segments.end(session, lease, done=False, engine={"name": "echo"})
    assert the_segment(database, batch).state == state


def test_a_message_that_was_lost_gives_its_segment_back_in_a_new_epoch(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(5)
    segment_id, epoch = dispatched(database, batch)
    let_the_lease_run_out(database, segment_id)
    with database.write() as session:
        assert segments.recover(session) == 1
        assert segments.recover(session) == 0
        assert segments.start(session, segment_id, epoch, "here/1/task", 60) is None, "the message comes late"
    assert dispatched(database, batch) == (segment_id, epoch + 2)


def test_only_slots_of_batches_that_do_not_go_on_are_withdrawn(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    paused, running = new_batch(1), new_batch(1)
    for batch in (paused, running):
        dispatched(database, batch)
    pause(database, me, paused)
    with database.write() as session:
        segments.withdraw(session)
        assert [entry.batch_id for entry in segments.active(session)] == [running.id]
    assert the_segment(database, paused).state == "pending"


def test_other_running_segments_of_the_model_are_counted_by_class(database: Database, new_batch: NewBatch) -> None:
    batch, other = new_batch(10, 20, 30), new_batch(40, model="other")
    leases = [started(database, batch, number) for number in (0, 1)]
    started(database, other)
    with database.write() as session:
        segments.append(session, leases[1], a_chunk(leases[1], completed=4))
        assert segments.beside(session, leases[0]) == ({"decode": 4}, 16)
        assert segments.running(session) == 3


def test_a_page_of_segments_begins_after_a_number(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1, 1, 1)
    with database.read() as session:
        first, more = segments.page(session, batch.id, after=None, limit=2)
        rest, end = segments.page(session, batch.id, after=1, limit=2)
    assert ([segment.number for segment in first], more) == ([0, 1], True)
    assert ([segment.number for segment in rest], end) == ([2], False)


def test_each_engine_that_answered_a_batch_is_described_once(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(1, 1, 1)
    for number, version in enumerate(("1", "1", "2")):
        lease = started(database, batch, number)
        with database.write() as session:
            segments.end(session, lease, done=True, engine={"version": version})
    with database.read() as session:
        assert segments.engines(session, batch.id) == {"echo": [{"version": "1"}, {"version": "2"}]}


def test_segments_of_a_batch_read_the_row_groups_of_its_plan_unless_they_have_plans_of_their_own(
    database: Database, new_batch: NewBatch
) -> None:
    batch = new_batch(1, 1)
    with database.write() as session:
        session.execute(update(Segment).where(Segment.number == 1).values(plan_sha256="2" * 64, row_group=7))
    with database.read() as session:
        assert segments.plans(session, batch.id) == [("1" * 64, 0), ("2" * 64, 7)]
    lease = started(database, batch, 1)
    assert (lease.plan_sha256, lease.row_group, lease.number) == ("2" * 64, 7, 1)


def test_a_segment_of_the_background_hears_that_it_has_to_make_way(
    database: Database, new_batch: NewBatch, me: Principal
) -> None:
    batch = new_batch(10, priority=BACKGROUND)
    segment = started(database, batch)
    assert segment.due_at == math.inf, "other models' work goes before it"
    with database.write() as session:
        assert segments.renew(session, segment, 60) == "make_way"
    pause(database, me, batch)
    with database.write() as session:
        assert segments.renew(session, segment, 60) == "pause"
