"""A segment's answers are stored in the order in which they can be relied on."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tasks.context import AppContext
from tasks.execution import chunk_writer, segment
from tasks.execution.chunk_writer import ChunkWriter
from tests.support.planned import answers, dispatched, plan_batch, reload, the_segment
from tests.tasks.execution.conftest import DirectedEngine


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to the answers, in its order."""
    events: list[str] = []
    monkeypatch.setattr(chunk_writer, "FLUSH_SECONDS", 3600.0)  # on a slow machine a second passes between two answers
    flush = ChunkWriter.flush

    def flushed(self: ChunkWriter, *, ends: bool = False) -> None:
        if self._tables:
            events.append("stored")
        flush(self, ends=ends)

    monkeypatch.setattr(ChunkWriter, "flush", flushed)
    return events


def test_answers_are_stored_before_the_engines_hear_that_the_run_is_over(
    context: AppContext, project: str, engine: DirectedEngine, events: list[str]
) -> None:
    def stopped_in_the_middle(lines: list[int]) -> Iterator[pa.Table]:
        try:
            yield answers(lines[:1])
            engine.stop()
            yield answers(lines[1:2])
        finally:
            events.append("closed")

    engine.run = stopped_in_the_middle
    batch = plan_batch(context, project, ["one", "two", "three"])
    segment.run(context, *dispatched(context.database, batch), "here/1/task")
    assert events == ["stored", "closed"]
    assert the_segment(context.database, batch).state == "pending"
    assert reload(context.database, batch).completed == 2
