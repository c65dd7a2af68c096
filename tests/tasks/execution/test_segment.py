"""A segment answers each of its requests once, keeps what was answered, and ends or is given back whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import orjson
import pyarrow as pa
import pytest
from sqlalchemy import select, update

from batchyard.endpoints import output_lines
from batchyard.errors import EngineDied, EngineError, EngineStartError, GpuBusy, UnavailableError
from batchyard.models import ModelSpec
from store import batches, holds, segments
from store.records import Batch, Event, Hold, Project, Segment
from store.work import traces
from tasks import messages
from tasks.context import AppContext
from tasks.execution import chunk_writer, segment
from tasks.scheduling import dispatch, gpu_sharing
from tests.support.planned import (
    answers,
    append,
    dispatched,
    lose,
    output_of,
    plan_batch,
    reload,
    started,
    the_segment,
)
from tests.support.traces import hex_ids, record_spans
from tests.tasks.execution.conftest import DirectedEngine


@pytest.fixture
def batch(context: AppContext, project: str) -> Batch:
    """One segment of five requests."""
    return plan_batch(context, project, ["one", "two", "three", "four", "five"])


def run(context: AppContext, batch: Batch) -> bool:
    return segment.run(context, *dispatched(context.database, batch), "here/1/task")


def custom_ids(context: AppContext, batch: Batch) -> list[str]:
    return sorted(line["custom_id"] for line in output_of(context, batch))


def test_a_segment_answers_every_request_and_ends(context: AppContext, batch: Batch, engine: DirectedEngine) -> None:
    assert run(context, batch)
    assert custom_ids(context, batch) == ["r1", "r2", "r3", "r4", "r5"]
    record, batch = the_segment(context.database, batch), reload(context.database, batch)
    assert (record.state, record.holder, record.answered, record.engine) == ("done", None, 5, engine.versions)
    assert (batch.completed, batch.failed, batch.input_tokens, batch.output_tokens) == (5, 0, 15, 10)


def test_the_next_segment_starts_while_the_last_requests_of_this_one_run(
    context: AppContext, project: str, engine: DirectedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_with_two = ModelSpec(name="echo", engine="echo", max_in_flight=1)
    context = replace(context, models={"echo": full_with_two})
    plan_batch(context, project, map(str, range(10)), segment_requests=5)
    monkeypatch.setattr(chunk_writer, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(messages, "segment", lambda *_: None)
    active: list[int] = []

    def one_by_one(lines: list[int]) -> Iterator[pa.Table]:
        for line in lines:
            with context.database.read() as session:
                active.append(len(segments.active(session)))
            yield answers([line])

    engine.run = one_by_one
    dispatch.run(context)
    with context.database.read() as session:
        (first,) = segments.active(session)
        epoch = session.get_one(Segment, first.segment_id).epoch
    assert segment.run(context, first.segment_id, epoch, "here/1/task")
    assert active == [1, 1, 1, 1, 2], "with one answer to come there is room"


def test_a_dispatch_that_fails_while_a_segment_drains_is_left_to_housekeeping(
    context: AppContext, batch: Batch, engine: DirectedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: AppContext) -> None:
        raise UnavailableError("no database")

    monkeypatch.setattr(dispatch, "run", away)
    monkeypatch.setattr(chunk_writer, "FLUSH_SECONDS", 0.0)
    engine.run = lambda lines: (answers([line]) for line in lines)
    assert run(context, batch)
    assert the_segment(context.database, batch).state == "done"


def test_an_old_message_does_nothing(context: AppContext, batch: Batch, engine: DirectedEngine) -> None:
    segment_id, epoch = dispatched(context.database, batch)
    assert not segment.run(context, segment_id, epoch - 1, "here/1/task")
    assert the_segment(context.database, batch).state == "dispatched"
    assert segment.run(context, segment_id, epoch, "here/1/task")
    assert not segment.run(context, segment_id, epoch, "here/2/task"), "the message was delivered twice"
    assert (engine.lines, reload(context.database, batch).completed) == ([1, 2, 3, 4, 5], 5)


@pytest.mark.parametrize("outcome", ["expired", "cancelled"])
def test_a_segment_whose_batch_ends_before_its_message_comes_does_not_start(
    context: AppContext, batch: Batch, engine: DirectedEngine, outcome: str
) -> None:
    message = dispatched(context.database, batch)
    with context.database.write() as session:
        if outcome == "expired":
            session.execute(update(Batch).values(expires_at=1))
            assert batches.expire(session) == [batch.id]
        else:
            batches.cancel(session, batch.project_id, batch.id)
    assert not segment.run(context, *message, "here/1/task")
    assert engine.lines == []
    with context.database.write() as session:
        segments.withdraw(session)
        assert batches.claim_finishable(session, 1.0) == [batch.id]


def test_only_requests_without_an_answer_run_again(context: AppContext, batch: Batch, engine: DirectedEngine) -> None:
    first = started(context.database, batch)
    append(context, first, answers([2, 5]))
    lose(context.database, int(first.lease.id))
    assert run(context, batch)
    assert engine.lines == [1, 3, 4]
    assert custom_ids(context, batch) == ["r1", "r2", "r3", "r4", "r5"]


def test_a_segment_whose_requests_are_all_answered_needs_no_engine(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    first = started(context.database, batch)
    append(context, first, answers([1, 2, 3, 4, 5]))
    lose(context.database, int(first.lease.id))
    engine.starts = lambda: pytest.fail("the engine was started")
    assert run(context, batch)
    assert the_segment(context.database, batch).state == "done"


def test_a_segment_whose_attempts_are_used_up_answers_the_rest_with_the_engines_error(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    first = started(context.database, batch)
    append(context, first, answers([2]))
    lose(context.database, int(first.lease.id))
    attempts = context.settings.segment_attempts
    with context.database.write() as session:
        session.execute(update(Segment).values(attempts=attempts, error="CUDA out of memory"))
    engine.starts = lambda: pytest.fail("the engine was started")
    assert run(context, batch)
    refused = [line for line in output_of(context, batch) if line["response"] is None]
    assert sorted(line["custom_id"] for line in refused) == ["r1", "r3", "r4", "r5"]
    assert {(line["error"]["code"], line["error"]["message"]) for line in refused} == {
        (
            "engine_unavailable",
            f"The engine could not run this request in {attempts} attempts: CUDA out of memory",
        )
    }
    batch = reload(context.database, batch)
    assert (the_segment(context.database, batch).state, batch.completed, batch.failed) == ("done", 1, 4)


@pytest.mark.usefixtures("frozen_time")
@pytest.mark.parametrize(
    ("error", "attempts"), [(EngineError("no answer"), 1), (EngineDied("killed"), 1), (UnavailableError("no disk"), 0)]
)
def test_only_failures_of_the_engine_count_as_attempts(
    context: AppContext, batch: Batch, engine: DirectedEngine, error: EngineError | UnavailableError, attempts: int
) -> None:
    def fail() -> None:
        raise error

    engine.starts = fail
    assert run(context, batch)
    record = the_segment(context.database, batch)
    assert (record.state, record.holder, record.attempts, record.error) == ("pending", None, attempts, error.message)
    assert 4 < record.not_before - time.time() <= 5
    assert reload(context.database, batch).attempt_error == (None if attempts else error.message)
    engine.starts = lambda: None
    with context.database.write() as session:
        session.execute(update(Segment).values(not_before=0.0))
    assert run(context, batch)
    assert reload(context.database, batch).attempt_error is None


@pytest.mark.usefixtures("frozen_time")
def test_a_segment_waits_twice_as_long_after_each_failure_in_a_row(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    def fail() -> None:
        raise EngineError("no answer")

    engine.starts = fail
    waits = []
    for _ in range(3):
        run(context, batch)
        waits.append(the_segment(context.database, batch).not_before - time.time())
    assert [round(wait) for wait in waits] == [5, 10, 20]


def test_a_segment_that_finds_no_gpu_free_is_not_to_blame_and_says_who_is(
    connected: AppContext, project: str, engine: DirectedEngine
) -> None:
    batch = plan_batch(connected, project, ["one"])

    def busy() -> None:
        raise GpuBusy("GPU 0 is in use", holders=["other"])

    engine.starts = busy
    assert run(connected, batch)
    record = the_segment(connected.database, batch)
    assert (record.state, record.attempts, record.error) == ("pending", 0, "GPU 0 is in use")
    (demand,) = gpu_sharing.demands(connected)
    assert (demand.holders, demand.due_at) == (["other"], batch.due_at)
    engine.starts = lambda: None
    run(connected, batch)
    assert gpu_sharing.demands(connected) == []


def test_what_was_answered_before_a_failure_is_kept_and_begins_the_count_anew(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    def die(lines: list[int]) -> Iterator[pa.Table]:
        yield answers(lines[:2])
        raise EngineDied("killed")

    with context.database.write() as session:
        session.execute(update(Segment).values(attempts=2))
    engine.run = die
    assert run(context, batch)
    record = the_segment(context.database, batch)
    assert (record.state, record.attempts, record.answered, record.error) == ("pending", 1, 2, "killed")
    assert custom_ids(context, batch) == ["r1", "r2"]
    engine.run = lambda lines: iter([answers(lines)])
    run(context, batch)
    assert engine.lines == [1, 2, 3, 4, 5, 3, 4, 5]


def test_an_unexpected_error_counts_as_an_attempt_and_is_raised(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    def broken(_lines: list[int]) -> Iterator[pa.Table]:
        raise ZeroDivisionError("broken")

    engine.run = broken
    with pytest.raises(ZeroDivisionError):
        run(context, batch)
    record = the_segment(context.database, batch)
    assert (record.state, record.attempts, record.error) == ("pending", 1, "ZeroDivisionError: broken")


def test_a_segment_that_was_lost_appends_nothing_and_leaves_the_next_holder_alone(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    def too_late(lines: list[int]) -> Iterator[pa.Table]:
        lose(context.database, the_segment(context.database, batch).id)
        started(context.database, batch)
        yield answers(lines)

    engine.run = too_late
    assert run(context, batch)
    record, counts = the_segment(context.database, batch), reload(context.database, batch)
    assert (record.state, record.epoch, record.answered, record.attempts) == ("running", 3, 0, 0)
    assert (counts.completed, counts.failed, output_of(context, batch)) == (0, 0, [])


def test_a_cancelled_batchs_segment_stops_at_once_and_keeps_its_answers(
    context: AppContext, batch: Batch, engine: DirectedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "BEAT_SECONDS", 0.05)

    def hang(lines: list[int]) -> Iterator[pa.Table]:
        yield answers(lines[:2])
        with context.database.write() as session:
            batches.cancel(session, batch.project_id, batch.id)
        engine.hang()

    engine.run = hang
    assert run(context, batch)
    record = the_segment(context.database, batch)
    assert (record.state, record.holder, record.attempts, record.error) == ("pending", None, 0, None)
    assert custom_ids(context, batch) == ["r1", "r2"]


def test_requests_that_are_alike_run_once_and_share_the_answer(
    context: AppContext, project: str, engine: DirectedEngine
) -> None:
    batch = plan_batch(context, project, ["same", "other", "same"], fingerprints={1: b"same", 3: b"same"})
    assert run(context, batch)
    assert sorted(engine.lines) == [1, 2]
    lines = {line["custom_id"]: line for line in output_of(context, batch)}
    assert sorted(lines) == ["r1", "r2", "r3"]
    assert lines["r3"]["response"]["body"]["batchyard"] == {"same_as": "r1"}
    assert lines["r3"]["response"]["body"]["choices"] == lines["r1"]["response"]["body"]["choices"]
    batch = reload(context.database, batch)
    assert (batch.completed, batch.shared_requests, batch.shared_output_tokens) == (3, 1, 2)


@pytest.mark.parametrize(("versions", "runs"), [({"model_sha256": "a" * 64}, [1, 2]), ({"version": "1"}, [1, 2, 1])])
def test_a_request_answered_before_is_not_run_again_if_the_weights_are_known(
    context: AppContext, project: str, engine: DirectedEngine, versions: dict[str, str], runs: list[int]
) -> None:
    with context.database.write() as session:
        session.execute(update(Project).values(cache_bytes=1_000_000))
    engine.versions = versions
    first = plan_batch(context, project, ["one", "two"], fingerprints={1: b"one", 2: b"two"})
    run(context, first)
    second = plan_batch(context, project, ["one"], fingerprints={1: b"one"})
    run(context, second)
    assert engine.lines == runs
    (line,) = output_of(context, second)
    assert line["response"]["body"].get("batchyard") == ({"cached": True} if len(runs) == 2 else None)
    assert reload(context.database, second).completed == 1


def test_a_verification_is_asked_as_it_says_and_gets_nothing_from_the_cache(
    context: AppContext, project: str, engine: DirectedEngine
) -> None:
    with context.database.write() as session:
        session.execute(update(Project).values(cache_bytes=1_000_000))
    engine.versions = {"model_sha256": "a" * 64}
    first, again = (plan_batch(context, project, ["one"], fingerprints={1: b"one"}) for _ in range(2))
    run(context, first)
    assert engine.options == {"alone": False, "replica": None}
    step = {"step": "verify", "batch_id": first.id, "alone": True, "replica": 1}
    with context.database.write() as session:
        session.execute(update(Batch).where(Batch.id == again.id).values(post_process=[step]))
    run(context, again)
    assert (engine.lines, engine.options) == ([1, 1], {"alone": True, "replica": 1})


def test_a_segment_needs_no_redis(new_context: Callable[..., AppContext], project: str, engine: DirectedEngine) -> None:
    context = new_context(redis_url="redis://127.0.0.1:1/0")
    batch = plan_batch(context, project, ["one"])
    assert run(context, batch)
    assert the_segment(context.database, batch).state == "done"


def hold(context: AppContext, batch: Batch, engine: DirectedEngine, reason: str = "no weights in this folder") -> None:
    """Run a segment whose engine cannot start."""

    def fail() -> None:
        raise EngineStartError(reason)

    engine.starts = fail
    assert run(context, batch)


def offered(context: AppContext) -> set[str]:
    """The batches of which a segment may start now."""
    with context.database.read() as session:
        return {entry.batch_id for entry in segments.waiting(session, 10)}


@pytest.mark.usefixtures("frozen_time")
def test_a_model_whose_engine_cannot_start_holds_its_batches_and_no_other_models(
    context: AppContext, project: str, batch: Batch, engine: DirectedEngine, new_batch: Callable[..., Batch]
) -> None:
    second, other = plan_batch(context, project, ["one"]), new_batch(1, model="other")
    hold(context, batch, engine)
    record = the_segment(context.database, batch)
    assert (record.state, record.attempts) == ("pending", 0)
    assert offered(context) == {other.id}
    with context.database.read() as session:
        held = holds.of_batches(session, [batch.id, second.id, other.id])
        assert {batch_id: entry.reason for batch_id, entry in held.items()} == dict.fromkeys(
            [batch.id, second.id], "no weights in this folder"
        )
        events = session.scalars(select(Event).where(Event.type == "batch.held")).all()
    assert {(event.batch_id, event.data["reason"]) for event in events} == {
        (batch.id, "no weights in this folder"),
        (second.id, "no weights in this folder"),
    }


@pytest.mark.usefixtures("frozen_time")
def test_a_held_model_is_tried_again_after_growing_pauses_and_told_of_once(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    pauses = []
    for _ in range(9):
        hold(context, batch, engine)
        with context.database.write() as session:
            (entry,) = session.scalars(select(Hold))
            pauses.append(round(entry.retry_at - time.time()))
            entry.retry_at = 0.0
        assert offered(context) == {batch.id}
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    with context.database.read() as session:
        assert len(session.scalars(select(Event).where(Event.type == "batch.held")).all()) == 1


def test_a_held_batch_completes_once_its_engine_starts(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    hold(context, batch, engine)
    engine.starts = lambda: None
    assert run(context, batch)
    assert custom_ids(context, batch) == ["r1", "r2", "r3", "r4", "r5"]
    with context.database.read() as session:
        assert session.scalars(select(Hold)).all() == []


def refused_account(lines: list[int]) -> pa.Table:
    """Answers of an endpoint whose quota is used up."""
    error = {"error": {"message": "Your quota is used up; see your plan.", "code": "insufficient_quota"}}
    table = answers(lines, failed=dict.fromkeys(lines, "insufficient_quota"))
    texts = [output_lines.line(f"r{line}", 429, orjson.dumps(error), None) for line in lines]
    return table.set_column(table.schema.get_field_index("answer"), "answer", pa.array(texts))


def test_a_batch_whose_every_request_is_refused_for_the_accounts_sake_is_held_with_the_endpoints_reason(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    engine.run = lambda lines: iter([refused_account(lines[:2]), refused_account(lines[2:])])
    for attempt in (1, 2):
        assert run(context, batch)
        assert custom_ids(context, batch) == []
        with context.database.write() as session:
            (entry,) = session.scalars(select(Hold))
            assert entry.reason == "Its endpoints refuse every request: Your quota is used up; see your plan."
            assert entry.attempts == attempt, "a start that works does not end the hold"
            entry.retry_at = 0.0
    engine.run = lambda lines: iter([answers(lines)])
    assert run(context, batch)
    assert reload(context.database, batch).completed == 5
    with context.database.read() as session:
        assert session.scalars(select(Hold)).all() == []


def test_some_requests_that_are_refused_for_the_accounts_sake_have_that_error(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    engine.run = lambda lines: iter([refused_account(lines[:2]), answers(lines[2:])])
    assert run(context, batch)
    batch = reload(context.database, batch)
    assert (batch.completed, batch.failed) == (3, 2)
    with context.database.read() as session:
        assert session.scalars(select(Hold)).all() == []


def test_what_endpoints_call_the_model_and_its_reasoning_stand_in_the_record(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    def reasoning(lines: list[int]) -> Iterator[pa.Table]:
        table = answers(lines)
        for name, value in (("reasoning_tokens", 60), ("served_model", "theirs-2026-08-06")):
            table = table.set_column(table.schema.get_field_index(name), name, pa.array([value] * len(lines)))
        yield table

    engine.run = reasoning
    assert run(context, batch)
    assert reload(context.database, batch).reasoning_tokens == 300
    assert the_segment(context.database, batch).engine == engine.versions | {"served_model": "theirs-2026-08-06"}


@pytest.mark.usefixtures("frozen_time")
def test_an_engine_that_answers_ends_the_hold_that_another_start_has_caused(
    context: AppContext, project: str, batch: Batch, engine: DirectedEngine
) -> None:
    running = started(context.database, plan_batch(context, project, ["one", "two"]))
    hold(context, batch, engine)
    assert offered(context) == set()
    append(context, running, answers([1]))
    assert offered(context) == {batch.id}


def test_a_held_batch_takes_the_configuration_in_which_the_fault_was_mended(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    hold(context, batch, engine)
    context.models["echo"] = ModelSpec(name="echo", engine="echo", engine_args={"latency_ms": 1})
    engine.starts = lambda: None
    assert run(context, batch)
    assert reload(context.database, batch).models["echo"]["engine_args"] == {"latency_ms": 1}


def test_a_held_batch_with_answers_keeps_the_configuration_that_gave_them(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    first = started(context.database, batch)
    append(context, first, answers([2]))
    lose(context.database, int(first.lease.id))
    hold(context, batch, engine)
    context.models["echo"] = ModelSpec(name="echo", engine="echo", engine_args={"latency_ms": 1})
    engine.starts = lambda: None
    assert run(context, batch)
    assert reload(context.database, batch).models["echo"].get("engine_args", {}) == {}


@pytest.mark.usefixtures("frozen_time")
def test_a_model_that_is_served_again_answers_even_in_the_last_minute(
    context: AppContext, batch: Batch, engine: DirectedEngine
) -> None:
    with context.database.write() as session:
        holds.hold_unserved(session, "echo")
        expires_at = int(time.time()) + 30
        session.execute(update(Batch).values(expires_at=expires_at, created_at=expires_at - 86400))
    assert run(context, batch)
    assert reload(context.database, batch).completed == 5
    with context.database.read() as session:
        assert session.scalars(select(Hold)).all() == []


@pytest.mark.usefixtures("frozen_time")
@pytest.mark.parametrize(("window", "last"), [(86400, 60), (100, 10)])
def test_a_held_batch_answers_with_the_reason_only_when_its_window_is_nearly_over(
    context: AppContext, batch: Batch, engine: DirectedEngine, window: int, last: int
) -> None:
    hold(context, batch, engine)
    for remaining, is_offered in ((last + 5, False), (last - 5, True)):
        with context.database.write() as session:
            expires_at = int(time.time()) + remaining
            session.execute(update(Batch).values(expires_at=expires_at, created_at=expires_at - window))
        assert (batch.id in offered(context)) == is_offered
    engine.starts = lambda: pytest.fail("the engine was started")
    assert run(context, batch)
    assert {(line["error"]["code"], line["error"]["message"]) for line in output_of(context, batch)} == {
        (
            "engine_unavailable",
            "The model could not run before the completion window ended: no weights in this folder",
        )
    }


def test_each_attempt_at_a_segment_has_a_span_and_its_answers_are_below_it(
    context: AppContext, batch: Batch, engine: DirectedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record_spans(monkeypatch)
    context = replace(context, settings=context.settings.model_copy(update={"trace_requests": 1.0}))
    lost = started(context.database, batch)
    append(context, lost, answers([1, 2]))
    lose(context.database, int(lost.lease.id))

    def die(_: list[int]) -> Iterator[pa.Table]:
        raise EngineDied("it has died")

    answering, engine.run = engine.run, die
    assert run(context, batch)
    engine.run = answering
    assert run(context, batch)
    failed, answered = recorder.of("segment")
    assert (failed.parent, failed.trace) == (answered.parent, answered.trace)
    assert (failed.parent, failed.trace) == hex_ids(traces.place(batch))[::-1]
    assert failed.error and failed.attributes["error.type"] == "EngineDied" and not answered.error
    epochs = [span.attributes["batchyard.segment.epoch"] for span in (failed, answered)]
    assert epochs == sorted(epochs) and epochs[0] > lost.lease.epoch, "the killed attempt was another one"
    requests = recorder.of("chat echo")
    assert [request.attributes["batchyard.line"] for request in requests] == [3, 4, 5]
    assert {request.parent for request in requests} == {answered.id}
