"""Jobs as a client creates them, straight in the records, and their batches without an engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from jobs.submission import creation
from jobs.submission.creation import JobRequest
from store import segments
from store.database import Database
from store.formats import asks
from store.jobs import lifecycle, stages
from store.records import Batch, Job, Project, Segment
from tasks.context import AppContext
from tasks.finishing import finalize
from tests.support.planned import answers, append, finish_segment, started
from tests.support.stacks import a_chat

MODELS = {name: {"name": name, "engine": "echo"} for name in ("echo", "other")}


def create_job(session: Session, project_id: str, **changes: Any) -> Job:
    """A job of recipe `debate` with a window of a day. `changes` replace its columns, and what else `create` gets."""
    columns: dict[str, Any] = {
        "project_id": project_id,
        "recipe": "debate",
        "recipe_sha256": "a" * 64,
        "completion_window": "24h",
        "options": {"n": 3},
        "models": MODELS,
        "simulated": True,
        "config_sha256": "c" * 64,
        "work_sha256": "d" * 64,
        "input_name": "rows.jsonl",
    }
    columns |= changes
    further = {name: columns.pop(name) for name in ("due_after", "idempotency") if name in columns}
    return lifecycle.create(session, Job(**columns), **further)


def start_job(session: Session, project_id: str, *, total: int = 3, **changes: Any) -> Job:
    """A job in progress with `total` items."""
    job = create_job(session, project_id, **changes)
    assert lifecycle.validated(session, job.id, items_sha256="e" * 64, total=total)
    session.refresh(job)
    return job


def planned(requests: int = 2, *, model: str = "echo", plan: str = "1", row_group: int = 0) -> Segment:
    size = 100 * requests
    return Segment(model=model, requests=requests, bytes=size, plan_sha256=plan * 64, row_group=row_group)


def open_stage(session: Session, job: Job, number: int = 0, name: str = "argue") -> Batch:
    return stages.open_batch(session, job, number, name, "/v1/chat/completions")


def ask(
    context: AppContext, batch: Batch, texts: Mapping[int, str], *, same_as: Mapping[int, int] | None = None
) -> None:
    """Extend an open batch by a segment with a request for each text, by line; line n has the custom_id `r<n>`.

    Args:
        same_as: for the lines that are duplicates, the line in this segment whose answer they share.
    """
    rows = [
        {
            "line": line,
            "custom_id": f"r{line}",
            "body": "" if line in (same_as or {}) else json.dumps(a_chat(f"r{line}", text)["body"]),
            "same_as": (same_as or {}).get(line),
            "fingerprint": text.encode(),
            "position": line,
            "life": 1,
            "visit": 1,
            "sample": 0,
            "retry": 0,
            "ask": bytes(16),
        }
        for line, text in texts.items()
    ]
    with context.artifacts.create() as file:
        asks.write(file, [pa.Table.from_pylist(rows, schema=asks.SCHEMA)])
    size = 100 * len(rows)
    segment = Segment(model="echo", requests=len(rows), bytes=size, plan_sha256=file.sha256, row_group=0)
    with context.database.write() as session:
        stages.extend(session, batch.id, [segment])


def seal(context: AppContext, batch: Batch) -> None:
    with context.database.write() as session:
        stages.seal(session, batch.id)


def running_stage(context: AppContext) -> Batch:
    """The open batch of a job of the only project, with two requests, one of them answered."""
    with context.database.write() as session:
        project_id = session.scalars(select(Project.id)).one()
        batch = open_stage(session, start_job(session, project_id))
    ask(context, batch, {1: "one", 2: "two"})
    append(context, started(context.database, batch), answers([1]))
    return batch


def end_stage(context: AppContext, batch: Batch) -> None:
    """Give a running stage another request, which fails, and end it before the second is answered."""
    ask(context, batch, {3: "three"})
    seal(context, batch)
    finish_segment(context, batch, answers([3], failed={3: "bad"}), number=1)
    with context.database.write() as session:
        session.execute(update(Batch).values(status="finalizing", outcome="expired"))
    assert finalize.merge(context, batch.id, "here/1/task")
    finalize.end(context, batch.id, "here/1/task")


def start_next(database: Database) -> segments.SegmentLease:
    """Start the first waiting segment."""
    with database.write() as session:
        first = min(segments.waiting(session, 10))  # they come in any order
        epoch = segments.dispatch(session, first.segment_id, 60)
        assert epoch is not None
        lease = segments.start(session, first.segment_id, epoch, "here/1/task", 60)
    assert lease is not None
    return lease


def submit_job(context: AppContext, project_id: str, request: JobRequest) -> Job:
    """Create a job and send it to a worker."""
    draft = creation.draft(context, project_id, request)
    with context.database.write() as session:
        job = creation.submit(context, session, draft)
    creation.send(job)
    return job
