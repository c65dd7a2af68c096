"""Jobs as a client creates them, straight in the records, and their batches without an engine."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from store.jobs import lifecycle, stages
from store.jobs.records import Job
from store.jobs.stages import PlannedJobSegment
from store.records import Batch

MODELS = {name: {"name": name, "engine": "echo"} for name in ("echo", "other")}


def create_job(session: Session, project_id: str, **changes: Any) -> Job:
    """A job of recipe `debate` with a window of a day. `changes` replace what `lifecycle.create` gets."""
    options: dict[str, Any] = {
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
    return lifecycle.create(session, project_id, **(options | changes))


def start_job(session: Session, project_id: str, *, total: int = 3, **changes: Any) -> Job:
    """A job in progress with `total` items."""
    job = create_job(session, project_id, **changes)
    assert lifecycle.validated(session, job.id, items_sha256="e" * 64, total=total)
    session.refresh(job)
    return job


def planned(requests: int = 2, *, model: str = "echo", plan: str = "1", row_group: int = 0) -> PlannedJobSegment:
    return PlannedJobSegment(model, requests, 100 * requests, "decode", plan * 64, row_group)


def open_stage(session: Session, job: Job, number: int = 0, name: str = "argue") -> Batch:
    return stages.open_batch(session, job, number, name, "/v1/chat/completions")
