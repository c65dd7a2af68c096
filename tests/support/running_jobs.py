"""Jobs of a recipe from a file, advanced tick by tick in the test's process, with an engine that echoes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import select

from batchyard.endpoints import output_lines
from jobs import app, finish
from jobs.catalogue import catalogue_of
from jobs.items import listing
from jobs.kinds.flow import FLOW
from store import segments
from store.formats import asks, chunks, items, job_chunks, plan
from store.jobs import chunk_records, lifecycle
from store.jobs import stages as stage_records
from store.keys import Principal
from store.records import Batch, File, Job, ResultChunk, Segment
from store.work.lifecycle import Verb
from tasks.context import AppContext
from tests.support.jobs import create_job

HEAD = """
import re
import threading
from batchyard.recipes import Ask, Flow, Item, Options, Peer, Result, Score, Wait, recipe, reward
"""


class Running:
    """A job of recipe `two` with an item for each prompt, and its engine."""

    def __init__(
        self, context: AppContext, project: str, prompts: Sequence[str], sample_rows: int | None = None
    ) -> None:
        self.context = context
        rows = ((number, f"item-{number}", orjson.dumps({"prompt": prompt})) for number, prompt in enumerate(prompts))
        items_sha256, total = items.write(context.artifacts, rows)
        with context.database.write() as session:
            sha256 = catalogue_of(context).sha256("two")
            values = {"recipe": "two", "recipe_sha256": sha256, "options": {}, "sample_rows": sample_rows}
            self.id = create_job(session, project, **values).id
            assert lifecycle.validated(session, self.id, items_sha256=items_sha256, total=total)

    @property
    def job(self) -> Job:
        with self.context.database.read() as session:
            return session.get_one(Job, self.id)

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            app.advance_leased(self.context, self.id, "here/1/task")

    def control(self, verb: Verb) -> None:
        """Pause, resume or cancel the job, as a client does."""
        with self.context.database.write() as session:
            client = Principal(self.job.project_id, admin=False, key_id="key_1", name="ours")
            lifecycle.control(session, client, self.id, verb)

    def paused(self) -> list[str | None]:
        """What has paused the batches of the stages."""
        with self.context.database.read() as session:
            return list(session.scalars(select(Batch.paused_by).where(Batch.job_id == self.id)))

    def crash(self, context: AppContext | None = None) -> None:
        """Lose what is in memory. `context`: with which the job goes on."""
        FLOW.jobs.clear()
        self.context = context or self.context

    def answer(self, stage: str, *numbers: int) -> None:
        """Answer the requests of a stage: those of these items, or all."""
        with self.context.database.write() as session:
            (batch_id,) = [own.batch_id for own in stage_records.of_job(session, self.id) if own.name == stage]
            for segment in session.scalars(select(Segment).where(Segment.batch_id == batch_id)):
                place = segment.plan_sha256 or "", segment.row_group or 0
                table = plan.segment(self.context.artifacts, *place, columns=asks.SCHEMA.names)
                rows = [
                    {"line": row["line"], "ok": True, "answer": _echoed(row["body"]), "seconds": 0.5}
                    for row in table.to_pylist()
                    if not numbers or row["position"] in numbers
                ]
                sha256 = chunks.write(self.context.artifacts, pa.Table.from_pylist(rows, schema=chunks.SCHEMA))
                session.add(ResultChunk(batch_id=batch_id, segment_id=segment.id, sha256=sha256, created_at=0.0))

    def issued(self) -> dict[str, list[str]]:
        """The custom_ids of what was issued, by stage, sorted."""
        with self.context.database.read() as session:
            plans = {own.name: segments.plans(session, own.batch_id or "") for own in self.stages()}
        return {
            name: sorted(
                custom_id
                for place in places
                for custom_id in plan.segment(self.context.artifacts, *place)["custom_id"].to_pylist()
            )
            for name, places in plans.items()
        }

    def stages(self) -> list[Any]:
        with self.context.database.read() as session:
            return stage_records.of_job(session, self.id)

    def ends(self) -> dict[str, dict[str, Any]]:
        """The rows of items that have ended, by custom_id. An item that ended twice is an error."""
        with self.context.database.read() as session:
            stored = chunk_records.of_job(session, self.id, "result")
        rows = [row for chunk in stored for row in job_chunks.read(self.context.artifacts, chunk.sha256).to_pylist()]
        rows = [row for row in rows if row["state"] not in job_chunks.UNENDED]
        assert len({row["custom_id"] for row in rows}) == len(rows)
        return {row["custom_id"]: row for row in rows}

    def states(self) -> list[str]:
        """The states of the items by number."""
        listed, _ = listing.page(self.context, self.job, state=None, custom_id=None, after=None, limit=100)
        return [item.state for item in listed]

    def finish(self) -> None:
        assert finish.run(self.context, self.id, "here/1/task")

    def files(self) -> dict[str, File]:
        """The artifacts by name."""
        with self.context.database.read() as session:
            return {artifact.name: file for artifact, file in lifecycle.artifacts(session, [self.id])[self.id]}

    def journal(self) -> list[dict[str, Any]]:
        """Finish the job. Return the rows of its journal."""
        self.finish()
        with self.context.artifacts.open(self.files()["journal.parquet"].sha256) as file:
            return list(pq.read_table(io.BytesIO(file.read())).to_pylist())


def _echoed(body: str) -> str:
    content = orjson.loads(body)["messages"][-1]["content"]
    choices = [{"message": {"content": content}, "finish_reason": "stop"}]
    return output_lines.line("x", 200, orjson.dumps({"choices": choices}), None)
