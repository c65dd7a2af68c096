"""A job with what the engine of jobs writes for it: plans, result chunks and judgements, without the engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
from sqlalchemy import select, update

from batchyard.comparing import histogram
from batchyard.endpoints import output_lines
from jobs.catalogue import catalogue_of
from jobs.items import detail, listing, states, stream
from store.formats import asks, chunks, items, job_chunks
from store.jobs import chunk_records, lifecycle, stages
from store.records import Batch, Job, ResultChunk, Segment
from tasks.context import AppContext
from tests.support.jobs import create_job

NUMBERS = [3, 0, 1, 2, 5, 4]  # shuffled: row of the input, by position
TOTAL = len(NUMBERS)


class Written:
    """A job in progress, and what the engine of jobs writes for it."""

    def __init__(
        self,
        context: AppContext,
        project: str,
        stage_names: Sequence[str] = ("argue", "judge"),
        columns: Callable[[int], dict[str, Any]] = lambda number: {"prompt": f"Why {number}?"},
        **changes: Any,
    ) -> None:
        """Create it with an item for each of NUMBERS. `columns` returns the row of a number."""
        self.context = context
        rows = ((number, f"id-{number}", orjson.dumps(columns(number))) for number in NUMBERS)
        sha256, total = items.write(context.artifacts, rows)
        self.batches: dict[str, str] = {}
        with context.database.write() as session:
            self.job = create_job(session, project, **changes)
            assert lifecycle.validated(session, self.job.id, items_sha256=sha256, total=total)
            session.refresh(self.job)
            for number, name in enumerate(stage_names):
                self.batches[name] = stages.open_batch(session, self.job, number, name, "/v1/chat/completions").id
        self.lines = dict.fromkeys(stage_names, 0)
        self.admitted(TOTAL)

    def admitted(self, count: int) -> None:
        self.update(admitted=count)

    def update(self, **values: Any) -> None:
        with self.context.database.write() as session:
            session.execute(update(Job).where(Job.id == self.job.id).values(**values))
            self.job = session.get_one(Job, self.job.id, populate_existing=True)

    def ask(
        self,
        stage: str,
        *places: tuple[int, int, int, int],
        life: int = 1,
        turn: int | None = None,
        same: bool = False,
        **body: Any,
    ) -> list[int]:
        """Add a segment with a request for each (position, visit, sample, retry). Return their lines.

        Their turn is the visit unless `turn` says another. With `same` the requests after the first are duplicates of
        it. `body` is that of all.
        """
        rows = []
        for index, (position, visit, sample, retry) in enumerate(places):
            self.lines[stage] += 1
            follows = same and index > 0
            own = {"model": "echo", "position": position, "sample": sample}
            again = f"~{retry}" if retry else ""
            rows.append(
                {
                    "line": self.lines[stage],
                    "custom_id": f"id-{NUMBERS[position]}/{stage}.{visit}.{sample}{again}",
                    "body": "" if follows else json.dumps(body or own),
                    "same_as": rows[0]["line"] if follows else None,
                    "fingerprint": None,
                    "position": position,
                    "life": life,
                    "visit": visit,
                    "sample": sample,
                    "retry": retry,
                    "ask": b"a" * 16,
                    "turn": turn or visit,
                }
            )
        with self.context.artifacts.create() as file:
            asks.write(file, [pa.Table.from_pylist(rows, schema=asks.SCHEMA)])
        segment = Segment(model="echo", requests=len(rows), bytes=100, plan_sha256=file.sha256, row_group=0)
        with self.context.database.write() as session:
            stages.extend(session, self.batches[stage], [segment])
        return [row["line"] for row in rows]

    def answer(self, stage: str, lines: Mapping[int, str], segment: int = -1) -> None:
        """Answer lines of a segment of a stage, the newest one, with these texts; it is done then."""
        rows = []
        for line, text in lines.items():
            choices = [{"message": {"content": text}, "finish_reason": "stop"}]
            body = orjson.dumps({"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
            answer = output_lines.line("x", 200, body, None)
            rows.append({"line": line, "ok": True, "answer": answer, "seconds": 0.5})
        sha256 = chunks.write(self.context.artifacts, pa.Table.from_pylist(rows, schema=chunks.SCHEMA))
        with self.context.database.write() as session:
            of_batch = select(Segment).where(Segment.batch_id == self.batches[stage]).order_by(Segment.id)
            record = session.scalars(of_batch).all()[segment]
            record.state = "done"
            chunk = ResultChunk(batch_id=record.batch_id, segment_id=record.id, sha256=sha256, created_at=time.time())
            session.add(chunk)
            batch = session.get_one(Batch, self.batches[stage])
            batch.completed += len(lines)
            batch.input_tokens += 3 * len(lines)
            batch.output_tokens += 2 * len(lines)
            batch.latencies = {"echo": {"decode": histogram.of([0.5] * batch.completed)}}

    def judge(self, *rows: tuple[int, int, int, str, Any], life: int = 1) -> None:
        """Add outcomes: position, turn, index, kind and value of each."""
        names = ("position", "turn", "index", "kind", "value")
        values = [dict(zip(names, row, strict=True), life=life) for row in rows]
        self._add("judgement", job_chunks.JUDGEMENT, [row | {"value": json.dumps(row["value"])} for row in values])

    def end(self, *ends: tuple[int, str], life: int = 1, error: Any = None, **values: Any) -> None:
        """Add a result chunk: position and state of each item. They have two turns, and these values."""
        rows = [
            {
                "position": position,
                "number": NUMBERS[position],
                "custom_id": f"id-{NUMBERS[position]}",
                "state": state,
                "life": life,
                "turns": 2,
                "result": json.dumps({"text": f"since {position}", "life": life} | values),
                "error": json.dumps(error) if error else None,
                "started_at": time.time() - 1,
                "ended_at": time.time(),
            }
            for position, state in ends
        ]
        self._add("result", job_chunks.RESULT, rows)

    def _add(self, kind: Any, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
        sha256 = job_chunks.write(self.context.artifacts, pa.Table.from_pylist(rows, schema=schema))
        with self.context.database.write() as session:
            assert chunk_records.add(session, self.job.id, kind, sha256, len(rows))

    def events(self, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        recipe = catalogue_of(self.context).recipe(self.job.recipe)
        content = b"".join(stream.event_lines(self.context, recipe, self.job, after, limit))
        return [json.loads(line) for line in content.splitlines()]

    def results(self, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        content = b"".join(stream.lines(self.context, self.job, after, limit))
        return [json.loads(line) for line in content.splitlines()]

    def listed(self, **changes: Any) -> tuple[list[states.ItemRow], bool]:
        options = {"state": None, "custom_id": None, "after": None, "limit": 100} | changes
        return listing.page(self.context, self.job, **options)

    def item(self, position: int) -> detail.ItemDetails:
        return detail.item(self.context, self.job, NUMBERS[position])

    def artifact(self, name: str, content: bytes) -> None:
        sha256 = self.context.artifacts.put(content)
        with self.context.database.write() as session:
            lifecycle.add_artifact(session, session.get_one(Job, self.job.id), name, sha256, len(content), None)

    def finished(self, status: str) -> None:
        """End the job, whose items and chunks are still there."""
        with self.context.database.write() as session:
            assert lifecycle.transition(session, self.job.id, "in_progress", "finalizing", outcome=status)
            assert lifecycle.transition(session, self.job.id, "finalizing", status)
        self.update(completed=len(NUMBERS))
