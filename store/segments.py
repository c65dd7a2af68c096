"""Segments: admitting, starting, appending to and ending them. A segment is `pending`, `dispatched` (a slot and a
message are on their way to a worker), `running` or `done`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Integer, and_, cast, func, select, update
from sqlalchemy.orm import Session

from store.database import changed
from store.leases import Lease
from store.records import AMOUNTS, Batch, Project, ResultChunk, Segment

TIMELINE = 120


@dataclass(frozen=True)
class SegmentLease:
    """What a worker needs to know to run one segment."""

    lease: Lease
    batch_id: str
    project_id: str
    endpoint: str
    plan_sha256: str
    number: int
    requests: int
    bytes: int
    request_class: str
    due_at: int
    model: dict[str, Any]
    attempts: int
    error: str | None
    cache_bytes: int | None
    chunks: Sequence[str]


class PendingSegment(NamedTuple):
    """A pending segment that may start. They sort by urgency: what is out of reach comes last."""

    infeasible: bool
    due_at: float
    batch_id: str
    number: int
    segment_id: int
    model: str
    project_id: str


def active(session: Session) -> dict[tuple[str, str], int]:
    """Segments that hold a slot (dispatched or running), per model and project."""
    rows = session.execute(
        select(Segment.model, Batch.project_id, func.count())
        .join(Batch, Batch.id == Segment.batch_id)
        .where(Segment.state.in_(("dispatched", "running")))
        .group_by(Segment.model, Batch.project_id)
    )
    return {(model, project_id): number for model, project_id, number in rows}


def any_waits(session: Session) -> bool:
    """Whether a segment is pending."""
    return session.scalar(select(Segment.id).where(Segment.state == "pending").limit(1)) is not None


def waiting(session: Session, limit: int) -> list[PendingSegment]:
    """Pending segments that may start, `limit` per model and project: those of the batches that are due first."""
    urgency = (Batch.infeasible, Batch.due_at, Batch.id, Segment.number)
    ready = and_(Segment.state == "pending", Segment.not_before <= time.time(), Batch.status == "in_progress")
    queues = session.execute(
        select(Segment.model, Batch.project_id).join(Batch, Batch.id == Segment.batch_id).where(ready).distinct()
    ).all()
    found: list[PendingSegment] = []
    # A query for each queue ends after `limit` rows; one over all would sort every pending segment.
    for model, project_id in queues:
        rows = session.execute(
            select(*urgency, Segment.id, Segment.model, Batch.project_id)
            .join(Segment, Segment.batch_id == Batch.id)
            .where(ready, Segment.model == model, Batch.project_id == project_id)
            .order_by(*urgency)
            .limit(limit)
        )
        found += [PendingSegment(*row) for row in rows]
    return found


def others_answer(session: Session, segment: SegmentLease) -> bool:
    """Whether other segments of the same model run now and have had an answer."""
    model, own = segment.model["name"], Segment.id == segment.lease.id
    running = select(Segment.id).where(Segment.state == "running", Segment.model == model, ~own, Segment.answered > 0)
    return session.scalar(running.limit(1)) is not None


def dispatch(session: Session, segment_id: int, seconds: float) -> int | None:
    """Give a pending segment a slot for `seconds`, within which a worker must start it; its new epoch."""
    return session.scalar(
        update(Segment)
        .where(Segment.id == segment_id, Segment.state == "pending")
        .values(state="dispatched", epoch=Segment.epoch + 1, lease_expires_at=time.time() + seconds)
        .returning(Segment.epoch)
    )


def start(session: Session, segment_id: int, epoch: int, holder: str, seconds: float) -> SegmentLease | None:
    """Take a dispatched segment, or None when the message is old: the epoch is gone or was started already."""
    started = changed(
        session,
        update(Segment)
        .where(Segment.id == segment_id, Segment.epoch == epoch, Segment.state == "dispatched")
        .values(state="running", holder=holder, lease_expires_at=time.time() + seconds),
    )
    if not started:
        return None
    segment, batch, cache_bytes = session.execute(
        select(Segment, Batch, Project.cache_bytes)
        .join(Batch, Batch.id == Segment.batch_id)
        .join(Project, Project.id == Batch.project_id)
        .where(Segment.id == segment_id)
    ).one()
    return SegmentLease(
        lease=Lease(Segment, segment_id, epoch),
        batch_id=batch.id,
        project_id=batch.project_id,
        endpoint=batch.endpoint,
        plan_sha256=batch.plan_sha256 or "",
        number=segment.number,
        requests=segment.requests,
        bytes=segment.bytes,
        request_class=segment.request_class,
        due_at=batch.due_at,
        model=batch.models[segment.model],
        attempts=segment.attempts,
        error=segment.error,
        cache_bytes=cache_bytes,
        chunks=session.scalars(select(ResultChunk.sha256).where(ResultChunk.segment_id == segment_id)).all(),
    )


def renew(session: Session, segment: SegmentLease, seconds: float) -> bool:
    """Keep the lease; whether the batch still wants the segment to go on. Raises LeaseLost."""
    segment.lease.renew(session, seconds)
    return session.scalar(select(Batch.status).where(Batch.id == segment.batch_id)) == "in_progress"


def append(session: Session, segment: SegmentLease, chunk: ResultChunk) -> None:
    """Add answers to the segment, and to its batch's counts. Raises LeaseLost, and then nothing was added."""
    segment.lease.guard(session)
    answered = Segment.answered + chunk.completed + chunk.failed
    session.execute(update(Segment).where(Segment.id == segment.lease.id).values(attempts=0, answered=answered))
    # The batch first: while its row is locked no other part of it is added, so ids rise in the order of commits, and
    # who reads parts in that order never misses one.
    session.execute(
        update(Batch)
        .where(Batch.id == segment.batch_id)
        .values({name: getattr(Batch, name) + (getattr(chunk, name) or 0) for name in AMOUNTS})
    )
    session.add(chunk)


def end(session: Session, segment: SegmentLease, *, done: bool, engine: Mapping[str, Any] | None) -> None:
    """Give the segment back: done, or pending again because its batch wants no more of it now. Raises LeaseLost."""
    segment.lease.release(session, state="done" if done else "pending", engine=engine)


def fail(session: Session, segment: SegmentLease, error: str, delay: float, *, counted: bool) -> None:
    """Give the segment back after a failure, not to be tried again for `delay` seconds. Raises LeaseLost.

    Only counted failures, those of the engine, make up the attempts after which its requests are given up.
    """
    segment.lease.release(
        session, state="pending", error=error, attempts=Segment.attempts + int(counted), not_before=time.time() + delay
    )


def recover(session: Session) -> int:
    """Make segments pending whose lease ran out: their message was lost or their worker died. How many."""
    moment = time.time()
    lost = update(Segment).where(Segment.lease_expires_at < moment).execution_options(synchronize_session=False)
    unstarted = changed(
        session, lost.where(Segment.state == "dispatched").values(state="pending", epoch=Segment.epoch + 1)
    )
    died = changed(
        session,
        lost.where(Segment.state == "running").values(
            state="pending",
            epoch=Segment.epoch + 1,
            holder=None,
        ),
    )
    return unstarted + died


def withdraw(session: Session) -> None:
    """Take back the slots of segments that were dispatched and whose batch wants no more of them."""
    ended = select(Batch.id).where(Batch.id == Segment.batch_id, Batch.status != "in_progress")
    session.execute(
        update(Segment)
        .where(Segment.state == "dispatched", ended.exists())
        .values(state="pending", epoch=Segment.epoch + 1)
        .execution_options(synchronize_session=False)
    )


def chunks(session: Session, batch_id: str) -> Sequence[tuple[str, int]]:
    """(SHA-256, lines) of every part of a batch, in the order they were appended."""
    rows = session.execute(
        select(ResultChunk.sha256, ResultChunk.completed + ResultChunk.failed)
        .where(ResultChunk.batch_id == batch_id)
        .order_by(ResultChunk.id)
    )
    return [(sha256, lines) for sha256, lines in rows]


def timeline(session: Session, batch: Batch) -> list[list[float]]:
    """How a batch's answers came: about TIMELINE times (Unix seconds) at most, each with the requests answered and the
    tokens until then. Empty before the first. Of a batch that has ended it is kept, its parts are not."""
    kept = session.scalar(select(Batch.timeline).where(Batch.id == batch.id))
    if kept is not None:
        return kept
    own = ResultChunk.batch_id == batch.id
    first, last = session.execute(
        select(func.min(ResultChunk.created_at), func.max(ResultChunk.created_at)).where(own)
    ).one()
    if first is None:
        return []
    start = min(float(batch.in_progress_at or batch.created_at), first)
    width = max((last - start) / TIMELINE, 1.0)
    rows = session.execute(
        select(
            func.max(ResultChunk.created_at).label("at"),
            func.sum(ResultChunk.completed + ResultChunk.failed),
            func.sum(ResultChunk.input_tokens + ResultChunk.output_tokens),
        )
        .where(own)
        .group_by(cast((ResultChunk.created_at - start) / width, Integer))
        .order_by("at")
    )
    points: list[list[float]] = [[round(start, 1), 0, 0]]
    for at, answered, used in rows:
        points.append([round(at, 1), points[-1][1] + int(answered), points[-1][2] + int(used)])
    return points


def failing(session: Session, batch_id: str, limit: int) -> Sequence[str]:
    """SHA-256 of the newest parts of a batch that hold a failed request."""
    chunks = select(ResultChunk.sha256).where(ResultChunk.batch_id == batch_id, ResultChunk.failed > 0)
    return session.scalars(chunks.order_by(ResultChunk.id.desc()).limit(limit)).all()


def engines(session: Session, batch_id: str) -> dict[str, list[dict[str, Any]]]:
    """The distinct engine descriptions that answered for each model of a batch."""
    found: dict[str, list[dict[str, Any]]] = {}
    rows = session.execute(
        select(Segment.model, Segment.engine).where(Segment.batch_id == batch_id).order_by(Segment.number)
    )
    for model, engine in rows:
        described = found.setdefault(model, [])
        if engine is not None and engine not in described:
            described.append(engine)
    return found
