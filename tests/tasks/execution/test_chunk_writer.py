"""Answers are appended about once a second, all that came since, with what they add up to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import select

from batchyard import json_lines, latency
from batchyard.backoff import Backoff
from batchyard.endpoints import output_lines
from batchyard.errors import LeaseLost, UnavailableError
from batchyard.wording import FLAWS
from store.formats import chunks
from store.records import Batch, ResultChunk
from tasks.context import AppContext
from tasks.execution import chunk_writer, progress, tally
from tasks.execution.chunk_writer import ChunkWriter
from tests.support.planned import answers, lose, marked, plan_batch, reload, started, the_segment


@pytest.fixture
def batch(context: AppContext, project: str) -> Batch:
    """One segment of five requests."""
    return plan_batch(context, project, ["one", "two", "three", "four", "five"])


@pytest.fixture
def writer(context: AppContext, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> ChunkWriter:
    """Of the batch's segment; it is never due by time."""
    monkeypatch.setattr(chunk_writer, "FLUSH_SECONDS", 3600.0)
    return ChunkWriter(context, started(context.database, batch), threading.Event())


def table(*lines: int, shared: bool = False, failed: dict[int, str] | None = None) -> pa.Table:
    """Answers with the columns that tell whether an engine computed them, and lack the form that was asked for."""
    return marked(answers(lines, failed=failed), shared)


def appended(context: AppContext, batch: Batch) -> list[ResultChunk]:
    with context.database.read() as session:
        of_batch = select(ResultChunk).where(ResultChunk.batch_id == batch.id).order_by(ResultChunk.id)
        return list(session.scalars(of_batch))


def test_answers_wait_for_each_other_until_a_flush_is_due(
    context: AppContext, batch: Batch, writer: ChunkWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.add(table(1))
    writer.add(table(2))
    assert appended(context, batch) == []
    monkeypatch.setattr(chunk_writer, "FLUSH_SECONDS", 0.0)
    writer.add(table(3))
    assert [chunk.completed for chunk in appended(context, batch)] == [3]
    monkeypatch.setattr(chunk_writer, "FLUSH_SECONDS", 3600.0)
    writer.add(table(4))
    assert len(appended(context, batch)) == 1, "the next second has begun"


def test_many_answers_are_flushed_before_a_second_is_over(
    context: AppContext, batch: Batch, writer: ChunkWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_writer, "FLUSH_ROWS", 3)
    writer.add(table(1, 2))
    assert appended(context, batch) == []
    writer.add(table(3))
    assert [chunk.completed for chunk in appended(context, batch)] == [3]


def test_long_answers_are_flushed_before_there_are_many(
    context: AppContext, batch: Batch, writer: ChunkWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_writer, "FLUSH_BYTES", 2 * table(1).nbytes)
    writer.add(table(1))
    assert appended(context, batch) == []
    writer.add(table(2))
    assert [chunk.completed for chunk in appended(context, batch)] == [2]


def test_a_chunk_says_what_its_answers_add_up_to(context: AppContext, batch: Batch, writer: ChunkWriter) -> None:
    writer.add(table(1, 2, failed={2: "context_length_exceeded"}))
    writer.add(table(3, shared=True))
    writer.flush()
    (chunk,) = appended(context, batch)
    assert (chunk.completed, chunk.failed) == (2, 1)
    assert (chunk.input_tokens, chunk.cached_tokens, chunk.output_tokens) == (6, 2, 4)
    assert (chunk.shared_requests, chunk.shared_input_tokens, chunk.shared_output_tokens) == (1, 3, 2)
    (content,) = chunks.read(context.artifacts, chunk.sha256)
    assert content.schema.equals(chunks.SCHEMA)
    assert content["line"].to_pylist() == [1, 2, 3]
    counts = reload(context.database, batch)
    assert (counts.completed, counts.failed, counts.input_tokens, counts.shared_requests) == (2, 1, 6, 1)
    assert the_segment(context.database, batch).answered == 3


def test_answers_with_flaws_are_counted_at_their_batch_and_for_metrics(connected: AppContext, project: str) -> None:
    batch = plan_batch(connected, project, ["one", "two", "three", "four"])
    writer = ChunkWriter(connected, started(connected.database, batch), threading.Event())
    lines = [
        output_lines.line(f"r{number}", 200, json_lines.dumps({"choices": [choice]}), None)
        for number, choice in enumerate(
            [
                {"message": {"content": "whole"}, "finish_reason": "stop"},
                {"message": {"content": "cu"}, "finish_reason": "length"},
                {"message": {"content": None}, "finish_reason": "length"},
                {"message": {"content": "la la"}, "finish_reason": "repetition"},
            ]
        )
    ]
    plain = marked(answers([1, 2, 3, 4]), invalid=True)
    place = plain.schema.get_field_index("answer")
    writer.add(plain.set_column(place, "answer", pa.array(lines)))
    writer.flush()
    counts = reload(connected.database, batch)
    found = counts.completed, counts.cut_off, counts.empty, counts.invalid, counts.looped
    assert found == (4, 2, 1, 4, 1)
    totals = tally.read(connected)
    assert [totals[flaw, "echo"] for flaw in FLAWS] == [2, 1, 4, 1]


def test_nothing_is_appended_where_nothing_came(context: AppContext, batch: Batch, writer: ChunkWriter) -> None:
    writer.flush()
    writer.add(table(1))
    writer.flush()
    writer.flush()
    assert len(appended(context, batch)) == 1


def test_a_lost_segments_answers_are_not_appended_and_not_counted(connected: AppContext, project: str) -> None:
    batch = plan_batch(connected, project, ["one", "two"])
    writer = ChunkWriter(connected, started(connected.database, batch), threading.Event())
    lose(connected.database, the_segment(connected.database, batch).id)
    with pytest.raises(LeaseLost):
        writer.add(table(1, 2))
        writer.flush()
    assert appended(connected, batch) == []
    counts = reload(connected.database, batch)
    assert (counts.completed, counts.failed, the_segment(connected.database, batch).answered) == (0, 0, 0)
    assert tally.read(connected) == {}


def test_failures_are_counted_by_their_codes(connected: AppContext, project: str) -> None:
    batch = plan_batch(connected, project, ["one", "two", "three", "four"])
    writer = ChunkWriter(connected, started(connected.database, batch), threading.Event())
    writer.add(table(1, 2, 3, 4, failed={1: "too_long", 2: "too_long", 3: "Not a code"}))
    writer.flush()
    totals = {what: number for (what, model), number in tally.read(connected).items() if model == "echo"}
    assert {what: number for what, number in totals.items() if what.startswith("error:")} == {
        "error:too_long": 2,
        "error:status_400": 1,
    }
    assert (totals["completed"], totals["failed"], totals["output_tokens"]) == (1, 3, 2)
    assert progress.read(connected, [batch.id])[batch.id]["completed"] == 1


def test_requests_are_counted_by_their_seconds(connected: AppContext, project: str) -> None:
    batch = plan_batch(connected, project, ["one", "two", "three", "four"])
    writer = ChunkWriter(connected, started(connected.database, batch), threading.Event())
    seconds = answers([1, 2, 3, 4], seconds=[0.2, 0.3, 5000.0, None])
    writer.add(marked(seconds))
    writer.flush()
    totals = {what: number for (what, _), number in tally.read(connected).items() if "seconds" in what}
    bucket = tally.REQUEST_SECONDS.index
    assert totals == {
        f"seconds:decode:{bucket(0.2)}": 1,
        f"seconds:decode:{bucket(0.5)}": 1,
        f"seconds:decode:{len(tally.REQUEST_SECONDS)}": 1,
        "seconds_ms:decode": 5_000_500,
    }
    measured = latency.summary(reload(connected.database, batch).latencies)
    assert measured is not None
    assert (measured.requests, measured.p50) == (3, pytest.approx(0.3, rel=0.02))


def test_an_unclear_commit_appends_a_chunk_once(
    context: AppContext, batch: Batch, writer: ChunkWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = context.database.write, [UnavailableError("the connection broke while COMMIT was on its way")]

    @contextmanager
    def break_after_the_commit(**options: Any) -> Iterator[Any]:
        with write(**options) as session:
            yield session
        if failures:
            raise failures.pop()

    monkeypatch.setattr(chunk_writer, "BACKOFF", Backoff(first=0.01))
    monkeypatch.setattr(context.database, "write", break_after_the_commit)
    writer.add(table(1, 2))
    writer.flush()
    assert not failures
    assert [chunk.completed for chunk in appended(context, batch)] == [2]
    record = reload(context.database, batch)
    assert (record.completed, record.attempt_error, the_segment(context.database, batch).answered) == (2, None, 2)


def test_answers_wait_for_a_store_that_is_away(
    context: AppContext, batch: Batch, writer: ChunkWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, failures, reasons = context.artifacts.create, [UnavailableError("the store is away")] * 3, []

    def away() -> Any:
        reasons.append(reload(context.database, batch).attempt_error)
        if failures:
            raise failures.pop()
        return create()

    monkeypatch.setattr(chunk_writer, "BACKOFF", Backoff(first=0.01))
    monkeypatch.setattr(context.artifacts, "create", away)
    writer.add(table(1, 2))
    writer.flush()
    assert [chunk.completed for chunk in appended(context, batch)] == [2]
    assert reasons == [None, *["the store is away"] * 3], "the batch says what it waits for"
    assert reload(context.database, batch).attempt_error is None


def test_answers_that_nobody_wants_wait_for_no_store(
    context: AppContext, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> Any:
        raise UnavailableError("the store is away")

    monkeypatch.setattr(chunk_writer, "FLUSH_SECONDS", 3600.0)
    stopped = threading.Event()
    stopped.set()
    writer = ChunkWriter(context, started(context.database, batch), stopped)
    monkeypatch.setattr(context.artifacts, "create", away)
    writer.add(table(1))
    with pytest.raises(UnavailableError):
        writer.flush()
