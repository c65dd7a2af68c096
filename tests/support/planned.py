"""Batches with a real input and a real plan, and the work of their segments without an engine."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import select, update

from batchyard.comparing import histogram
from batchyard.endpoints import output_lines
from inference.answers import ANSWERS
from store import batches, files, segments
from store.database import Database
from store.formats import chunks
from store.formats.plan import PlanWriter, SegmentSize
from store.keys import Principal
from store.leases import acquire_batch
from store.records import Batch, ResultChunk, Segment
from tasks.context import AppContext
from tasks.finishing import finalize
from tests.support.batches import create_batch
from tests.support.stacks import a_chat

MODEL = "echo"
HOLDER = "here/1/task"


def plan_batch(
    context: AppContext,
    project_id: str,
    texts: Iterable[str],
    *,
    segment_requests: int = 100,
    post_process: Iterable[str] = (),
    metadata: Mapping[str, str] | None = None,
    expected: Mapping[int, tuple[str, str]] | None = None,
    retry_of: str | None = None,
    custom_ids: Mapping[int, str] | None = None,
    fingerprints: Mapping[int, bytes] | None = None,
) -> Batch:
    """A batch in progress with a chat request for each text; line n has the custom_id `r<n>`.

    Args:
        post_process: names of its steps.
        metadata: of every request.
        expected: answer and task by line, for step `score`; the other lines have none.
        custom_ids: by line number, where they are others.
        fingerprints: by line number; requests with the same one share an answer.
    """
    requests = []
    for line, text in enumerate(texts, 1):
        answer, task = (expected or {}).get(line, (None, None))
        own = {"expected": answer, "task": task} if answer is not None else metadata
        requests.append(a_chat((custom_ids or {}).get(line, f"r{line}"), text, **({"metadata": own} if own else {})))
    content = "".join(json.dumps(request) + "\n" for request in requests).encode()
    with context.artifacts.create() as file:
        plan = PlanWriter(file, {MODEL: SegmentSize(segment_requests)})
        for line, request in enumerate(requests, 1):
            fingerprint = (fingerprints or {}).get(line)
            plan.add(MODEL, line, request["custom_id"], json.dumps(request["body"]).encode(), fingerprint=fingerprint)
        plan.close()
    sha256 = context.artifacts.put(content)
    with context.database.write() as session:
        source = files.create(
            session,
            project_id,
            filename="in.jsonl",
            purpose="batch",
            size=len(content),
            sha256=sha256,
            expires_after=None,
        )
        batch = create_batch(session, source, post_process=[{"step": step} for step in post_process], retry_of=retry_of)
        lease = acquire_batch(session, batch.id, "here/1/validation", 60)
        assert lease is not None
        batches.plan(
            session,
            batch,
            plan_sha256=file.sha256,
            segments=plan.segments,
            models={MODEL: {"name": MODEL, "engine": "echo"}},
            simulated=True,
        )
        lease.release(session)
    return reload(context.database, batch)


def reload(database: Database, batch: Batch) -> Batch:
    """The batch as it is now."""
    with database.read() as session:
        return session.get_one(Batch, batch.id)


def the_segment(database: Database, batch: Batch, number: int = 0) -> Segment:
    """A segment as it is now."""
    with database.read() as session:
        return session.scalars(select(Segment).where(Segment.batch_id == batch.id, Segment.number == number)).one()


def dispatched(database: Database, batch: Batch, number: int = 0) -> tuple[int, int]:
    """Id and epoch of a pending segment that has just been dispatched."""
    segment_id = the_segment(database, batch, number).id
    with database.write() as session:
        epoch = segments.dispatch(session, segment_id, 60)
    assert epoch is not None
    return segment_id, epoch


def started(database: Database, batch: Batch, number: int = 0) -> segments.SegmentLease:
    """A pending segment that a worker has just started."""
    with_epoch = dispatched(database, batch, number)
    with database.write() as session:
        lease = segments.start(session, *with_epoch, "here/1/task", 60)
    assert lease is not None
    return lease


def lose(database: Database, segment_id: int) -> None:
    """Let the lease of a running segment run out; housekeeping makes the segment pending again."""
    with database.write() as session:
        session.execute(update(Segment).where(Segment.id == segment_id).values(lease_expires_at=time.time() - 1))
        assert segments.recover(session) == 1


def answers(
    lines: Iterable[int],
    *,
    failed: Mapping[int, str] | None = None,
    texts: Mapping[int, str] | None = None,
    custom_ids: Mapping[int, str] | None = None,
    tokens: tuple[int, int, int] = (3, 1, 2),
    seconds: Iterable[float | None] = itertools.repeat(0.5),
) -> pa.Table:
    """Answers as an engine gives them.

    Args:
        failed: code of the error of each line that failed.
        texts: the answer to a line, if it is not `to r<n>`.
        custom_ids: that of a line, if it is not `r<n>`.
        tokens: input, cached and output tokens of each answer; an error has none.
        seconds: time in the engine, one for each line.
    """
    rows = []
    for line, measured in zip(lines, seconds, strict=False):
        code = (failed or {}).get(line)
        body: dict[str, Any] = {"error": {"code": code, "message": f"line {line} failed"}}
        if code is None:
            content = (texts or {}).get(line, f"to r{line}")
            body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}}]}
        custom_id = (custom_ids or {}).get(line, f"r{line}")
        answer = output_lines.line(custom_id, 400 if code else 200, json.dumps(body).encode(), None)
        rows.append((line, code is None, answer, *((0, 0, 0) if code else tokens), measured, 0, None, None))
    return pa.table(list(map(list, zip(*rows, strict=True))) if rows else ANSWERS.empty_table(), schema=ANSWERS)


def marked(table: pa.Table, shared: bool = False, invalid: bool = False) -> pa.Table:
    """Answers with the columns that tell whether an engine computed them, and lack the form that was asked for."""
    for name, value in (("shared", shared), ("invalid", invalid)):
        table = table.append_column(name, pa.array([value] * table.num_rows, pa.bool_()))
    return table


def append(context: AppContext, lease: segments.SegmentLease, table: pa.Table) -> None:
    """Append answers to a segment as one result chunk."""
    completed = sum(table["ok"].to_pylist())
    chunk = ResultChunk(
        batch_id=lease.batch_id,
        segment_id=lease.lease.id,
        sha256=chunks.write(context.artifacts, table),
        completed=completed,
        failed=table.num_rows - completed,
        created_at=time.time(),
    )
    with context.database.write() as session:
        segments.append(session, lease, chunk, histogram.of(pc.drop_null(table["seconds"]).to_pylist()))


def finish_segment(context: AppContext, batch: Batch, table: pa.Table, number: int = 0) -> None:
    """Answer a pending segment with one result chunk and end it."""
    lease = started(context.database, batch, number)
    append(context, lease, table)
    with context.database.write() as session:
        segments.end(session, lease, done=True, engine={"name": "echo", "version": "1"})


def end_batch(context: AppContext, batch: Batch) -> Batch:
    """Merge a batch whose segments are done, run its steps and end it."""
    with context.database.write() as session:
        batches.end_running(session)
    assert finalize.merge(context, batch.id, HOLDER)
    for position in range(len(batch.post_process)):
        assert finalize.run_step(context, batch.id, position, HOLDER)
    finalize.end(context, batch.id, HOLDER)
    return reload(context.database, batch)


def output_of(context: AppContext, batch: Batch) -> list[dict[str, Any]]:
    """The lines that a batch's segments have answered so far, in the order in which they were appended."""
    with context.database.read() as session:
        names = [sha256 for sha256, _ in segments.chunks(session, batch.id)]
    tables = [table for name in names for table in chunks.read(context.artifacts, name)]
    return [json.loads(answer) for table in tables for answer in table["answer"].to_pylist()]


def a_chunk(segment: segments.SegmentLease, completed: int = 1) -> ResultChunk:
    """Return a chunk that a segment may append, with answers to `completed` requests."""
    return ResultChunk(
        batch_id=segment.batch_id,
        segment_id=segment.lease.id,
        sha256="2" * 64,
        completed=completed,
        failed=0,
        input_tokens=3,
        cached_tokens=1,
        output_tokens=2,
        created_at=time.time(),
    )


def pause(database: Database, me: Principal, batch: Batch) -> Batch:
    """Pause a batch as a client, and return it as it is then."""
    with database.write() as session:
        return batches.control(session, me, batch.id, "pause")


def resume(database: Database, me: Principal, batch: Batch) -> Batch:
    """Resume a batch as a client, and return it as it is then."""
    with database.write() as session:
        return batches.control(session, me, batch.id, "resume")
