"""The queue as a whole: what waits, what runs, how fast; over all projects, for whoever watches the deployment."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from store.batches import RUNNING
from store.records import Batch, Part, Segment

WINDOW_SECONDS = 60.0


@dataclass(frozen=True)
class ModelQueue:
    """One model's segments and requests that are not done.

    Attributes:
        rows_per_second, tokens_per_second: over the last minute; None before anything was measured.
        oldest_seconds: how long ago the oldest batch with a pending segment was made; None if none waits.
    """

    model: str
    pending_segments: int
    running_segments: int
    waiting_requests: int
    oldest_seconds: float | None
    rows_per_second: float | None
    tokens_per_second: float | None


@dataclass(frozen=True)
class Queue:
    """What has not ended: batches by status, segments by model.

    Attributes:
        next_deadline_seconds: until the first deadline of these, negative once it has passed; None if there is none.
    """

    batches: dict[str, int]
    next_deadline_seconds: float | None
    models: list[ModelQueue]


def look(session: Session) -> Queue:
    """The queue now. Costs what is in it, not what has ever been."""
    moment = time.time()
    batches = dict.fromkeys(RUNNING, 0)
    rows = session.execute(
        select(Batch.status, func.count(), func.min(Batch.expires_at))
        .where(Batch.status.in_(RUNNING))
        .group_by(Batch.status)
    ).all()
    batches |= {status: count for status, count, _ in rows}
    segments = session.execute(
        select(Segment.model, Segment.state, func.count(), func.sum(Segment.requests), func.min(Batch.created_at))
        .join(Batch, Batch.id == Segment.batch_id)
        .where(Batch.status == "in_progress", Segment.state != "done")
        .group_by(Segment.model, Segment.state)
    ).all()
    rates = _rates(session, moment)
    found = []
    for model in sorted({row[0] for row in segments} | rates.keys()):
        states = {row[1]: row[2:] for row in segments if row[0] == model}
        pending, requests, oldest = states.pop("pending", (0, 0, None))
        rows_per_second, tokens_per_second = rates.get(model, (None, None))
        found.append(
            ModelQueue(
                model=model,
                pending_segments=pending,
                running_segments=sum(count for count, _, _ in states.values()),
                waiting_requests=int(requests),
                oldest_seconds=None if oldest is None else moment - oldest,
                rows_per_second=rows_per_second,
                tokens_per_second=tokens_per_second,
            )
        )
    deadlines = [deadline for _, _, deadline in rows]
    return Queue(batches, min(deadlines) - moment if deadlines else None, found)


def _rates(session: Session, moment: float) -> dict[str, tuple[float, float]]:
    """(rows per second, tokens per second) of each model over the last minute, of batches that are in progress.

    Its first part only starts the clock: what it holds was answered before.
    """
    parts = session.execute(
        select(Segment.model, Part.created_at, Part.completed + Part.failed, Part.input_tokens + Part.output_tokens)
        .join(Segment, Segment.id == Part.segment_id)
        .join(Batch, Batch.id == Part.batch_id)
        .where(Batch.status == "in_progress", Part.created_at > moment - WINDOW_SECONDS)
        .order_by(Part.created_at)
    )
    began: dict[str, float] = {}
    answered: dict[str, tuple[int, int]] = {}
    for model, created_at, rows, tokens in parts:
        if began.setdefault(model, created_at) < created_at:
            before = answered.get(model, (0, 0))
            answered[model] = before[0] + rows, before[1] + tokens
    return {
        model: (rows / (moment - began[model]), tokens / (moment - began[model]))
        for model, (rows, tokens) in answered.items()
    }
