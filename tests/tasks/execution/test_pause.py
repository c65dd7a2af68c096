"""Whatever the moment at which a batch is paused: what the engine has is answered, and every request once."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from store import batches, segments
from store.keys import Principal
from store.records import Batch
from tasks.context import AppContext
from tasks.execution import segment
from tests.support.planned import (
    answers,
    append,
    dispatched,
    end_batch,
    lose,
    output_of,
    plan_batch,
    reload,
    the_segment,
)
from tests.tasks.execution.conftest import DirectedEngine


@pytest.fixture
def me(project: str) -> Principal:
    return Principal(project, False, "key-1", "ada")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "BEAT_SECONDS", 0.02)


def pause(context: AppContext, me: Principal, batch: Batch) -> None:
    with context.database.write() as session:
        batches.control(session, me, batch.id, "pause")


def resume(context: AppContext, me: Principal, batch: Batch) -> None:
    with context.database.write() as session:
        batches.control(session, me, batch.id, "resume")


def run(context: AppContext, batch: Batch) -> bool:
    return segment.run(context, *dispatched(context.database, batch), "here/1/task")


def test_a_segment_of_a_paused_batch_ends_with_what_the_engine_had_and_goes_on_when_it_is_resumed(
    context: AppContext, project: str, me: Principal, engine: DirectedEngine
) -> None:
    batch = plan_batch(context, project, map(str, range(6)))

    def until_closed(lines: list[int]) -> Iterator[pa.Table]:
        yield answers(lines[:1])
        pause(context, me, batch)
        assert engine.closed.wait(60), "the run was not closed"
        yield answers(lines[1:3])  # these were in flight

    engine.run = until_closed
    assert run(context, batch)
    record = the_segment(context.database, batch)
    assert (record.state, record.answered, record.attempts, record.not_before) == ("pending", 3, 0, 0)
    resume(context, me, batch)
    engine.run = lambda lines: iter([answers(lines)])
    assert run(context, batch)
    assert engine.lines == [1, 2, 3, 4, 5, 6, 4, 5, 6]
    assert the_segment(context.database, batch).state == "done"
    assert end_batch(context, batch).completed == 6


def test_a_segment_whose_engine_still_starts_as_its_batch_is_paused_sends_nothing(
    context: AppContext, project: str, me: Principal, engine: DirectedEngine
) -> None:
    batch = plan_batch(context, project, map(str, range(6)))

    def start() -> None:
        pause(context, me, batch)
        engine.wait_until_stopped()

    engine.starts = start
    assert run(context, batch)
    assert (engine.lines, the_segment(context.database, batch).state) == ([], "pending")


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(3, 6))]
)
def test_pausing_and_resuming_at_any_moment_loses_and_doubles_nothing(
    context: AppContext, project: str, me: Principal, seed: int
) -> None:
    """Segments of one batch are dispatched, answer, end, and lose their worker in any order."""
    chance = random.Random(seed)
    batch = plan_batch(context, project, map(str, range(30)), segment_requests=10)
    running: dict[int, tuple[segments.SegmentLease, list[int]]] = {}
    unanswered = {number: list(range(10 * number + 1, 10 * number + 11)) for number in range(3)}
    messages: list[tuple[int, int, int]] = []

    def dispatch(number: int) -> None:
        with context.database.write() as session:
            segment_id = the_segment(context.database, batch, number).id
            epoch = segments.dispatch(session, segment_id, 60)
            if epoch is not None:
                messages.append((number, segment_id, epoch))

    def receive() -> None:
        number, segment_id, epoch = messages.pop(chance.randrange(len(messages)))
        with context.database.write() as session:
            lease = segments.start(session, segment_id, epoch, "here/1/task", 60)
        if lease is not None:
            running[number] = lease, chance.sample(unanswered[number], len(unanswered[number]))

    def answer(number: int) -> None:
        lease, left = running[number]
        lines = [left.pop() for _ in range(min(len(left), chance.randint(1, 4)))]
        if lines:
            append(context, lease, answers(lines))
            unanswered[number] = [line for line in unanswered[number] if line not in lines]

    def end(number: int) -> None:
        lease, left = running[number]
        with context.database.write() as session:
            if segments.renew(session, lease, 60) == "run" and left:
                return
            segments.end(session, lease, done=not left, engine=None)
        del running[number]

    def kill(number: int) -> None:
        lose(context.database, int(running.pop(number)[0].lease.id))

    for _ in range(120):
        action = chance.choice(["pause", "resume", "dispatch", "receive", "answer", "answer", "end", "kill"])
        number = chance.randrange(3)
        if action in ("pause", "resume"):
            {"pause": pause, "resume": resume}[action](context, me, batch)
        elif action == "dispatch":
            dispatch(number)
        elif action == "receive" and messages:
            receive()
        elif action in ("answer", "end", "kill") and number in running:
            {"answer": answer, "end": end, "kill": kill}[action](number)
    resume(context, me, batch)
    for number in range(3):
        while the_segment(context.database, batch, number).state != "done":
            dispatch(number)
            while messages:
                receive()
            if number in running:
                while unanswered[number]:
                    answer(number)
                end(number)
    assert sorted(line["custom_id"] for line in output_of(context, batch)) == sorted(f"r{n}" for n in range(1, 31))
    assert (end_batch(context, batch).completed, reload(context.database, batch).status) == (30, "completed")
