"""Segments in threads of one process: each stops alone, and all are given back when the process ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest
from sqlalchemy import select

from batchyard.errors import LeaseLost
from store import batches
from store.records import Batch, Segment
from tasks import advance, app
from tasks.context import AppContext
from tasks.execution import cluster_watch, segment
from tasks.execution.running import RunningSegments
from tests.support.planned import answers, dispatched, output_of, plan_batch, reload, the_segment
from tests.support.rows import until
from tests.tasks.execution.conftest import DirectedEngine

Run = Callable[[Batch], Future[bool]]


@pytest.fixture
def run(context: AppContext) -> Iterator[Run]:
    """Runs a batch's segment in a thread."""
    with ThreadPoolExecutor(4) as threads:
        yield lambda batch: threads.submit(
            segment.run, context, *dispatched(context.database, batch), f"here/1/{batch.id}"
        )


@pytest.fixture
def hanging(context: AppContext, project: str, engine: DirectedEngine) -> list[Batch]:
    """Three batches of an engine that answers two of their requests and then hangs."""

    def hang(lines: list[int]) -> Iterator[pa.Table]:
        yield answers(lines[:2])
        engine.hang()

    engine.run = hang
    return [plan_batch(context, project, ["one", "two", "three"]) for _ in range(3)]


def states(context: AppContext) -> list[tuple[str, str | None, int, str | None]]:
    with context.database.read() as session:
        return [(s.state, s.holder, s.attempts, s.error) for s in session.scalars(select(Segment).order_by(Segment.id))]


def test_a_process_that_ends_gives_all_its_segments_back_with_what_was_answered(
    context: AppContext, hanging: list[Batch], engine: DirectedEngine, run: Run, running: RunningSegments
) -> None:
    futures = [run(batch) for batch in hanging]
    until(lambda: engine.hanging == 3)
    running.stop()
    assert [future.result(300) for future in futures] == [True] * 3, "the engine hangs for twice as long"
    assert states(context) == [("pending", None, 0, None)] * 3
    assert [reload(context.database, batch).completed for batch in hanging] == [2, 2, 2]
    assert running.segments() == []


def test_a_process_that_ends_starts_nothing_more(
    context: AppContext,
    hanging: list[Batch],
    engine: DirectedEngine,
    running: RunningSegments,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(advance, "advance", lambda _context: pytest.fail("segments were dispatched"))
    running.stop()
    advance.run_segment(context, *dispatched(context.database, hanging[0]), "here/1/task")
    assert the_segment(context.database, hanging[0]).state == "pending"


def test_a_cancelled_segment_leaves_the_others_of_its_process_alone(
    context: AppContext,
    hanging: list[Batch],
    engine: DirectedEngine,
    run: Run,
    running: RunningSegments,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment, "BEAT_SECONDS", 0.05)
    cancelled, *others = [run(batch) for batch in hanging]
    until(lambda: engine.hanging == 3)
    with context.database.write() as session:
        batches.cancel(session, hanging[0].project_id, hanging[0].id)
    assert cancelled.result(60)
    assert [state for state, *_ in states(context)] == ["pending", "running", "running"]
    assert len(output_of(context, hanging[0])) == 2
    assert not any(future.done() for future in others)
    running.stop()


def test_a_process_whose_ray_cluster_is_gone_gives_all_its_segments_back_and_ends(
    context: AppContext,
    hanging: list[Batch],
    engine: DirectedEngine,
    run: Run,
    running: RunningSegments,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()
        raise LeaseLost("this process has ended")

    monkeypatch.setattr(segment.os, "_exit", end)
    monkeypatch.setattr(segment, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(cluster_watch, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(segment, "WATCH", cluster_watch.ClusterWatch())
    for batch in hanging:
        run(batch)
    until(lambda: engine.hanging == 3)
    for module in (segment, cluster_watch):
        monkeypatch.setattr(module, "ray_is_away", lambda: True)
    assert ended.wait(60)
    assert states(context) == [("pending", None, 0, "the Ray cluster went away")] * 3
    assert codes[0] == 1


def test_a_worker_that_has_grown_too_large_stops_itself_once(
    running: RunningSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(app, "RUNNING", running)
    monkeypatch.setattr(app.os, "kill", lambda *arguments: sent.append(arguments))
    monkeypatch.setattr(app, "MEMORY_BYTES", 2**60)  # tests before this one may have taken gigabytes
    app._end_if_large()
    assert sent == []
    monkeypatch.setattr(app, "MEMORY_BYTES", 1)
    app._end_if_large()
    running.stop()
    app._end_if_large()
    assert sent == [(os.getpid(), signal.SIGTERM)]
