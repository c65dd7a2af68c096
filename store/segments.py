"""Segments: dispatch, start, append to and end them.

A segment is `pending`, `dispatched` (it has a slot, and its message is on the way to a worker), `running` or `done`.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Integer, and_, case, cast, func, or_, select, true, update
from sqlalchemy.orm import Session

from batchyard import latency
from batchyard.comparing.histogram import Histogram
from batchyard.statuses import BACKGROUND
from store import holds
from store.database import changed
from store.leases import Lease
from store.records import AMOUNTS, Batch, Budget, Hold, Job, Project, ResultChunk, Segment

TIMELINE = 120
_OF_BATCH = ("job_id", "traceparent", "project_id", "endpoint")
_OF_SEGMENT = ("number", "requests", "bytes", "request_class", "attempts", "error")


@dataclass(frozen=True)
class SegmentLease:
    """A running segment with all that its worker needs. `due_at` is infinite for a batch of the background."""

    lease: Lease
    batch_id: str
    job_id: str | None
    traceparent: str | None
    project_id: str
    endpoint: str
    plan_sha256: str
    row_group: int
    number: int
    requests: int
    bytes: int
    request_class: str
    due_at: float
    model: dict[str, Any]
    attempts: int
    error: str | None
    cache_bytes: int | None
    chunks: Sequence[str]
    held: str | None
    """Why the model is on hold, see store.holds."""
    last_chance: bool
    """The batch can wait for a held model no longer."""
    has_limits: bool = False
    """Each result chunk may pause the batch, see store.accounting.stopping."""
    capped_key: str | None = None
    """The key with a cap that it counts against."""
    alone: bool = False
    """Each request has an engine to itself."""
    replica: int | None = None
    """The only one that answers; None: all of the model."""


class PendingSegment(NamedTuple):
    """A pending segment that may start, or one with a slot. Tuples sort by urgency, infeasible batches last.

    `unanswered` counts its requests without an answer that are to be sent. By default they are more than any engine
    holds. Of a project's segments those of the highest `priority` go first; those of the background after all others.
    """

    infeasible: bool
    due_at: float
    batch_id: str
    number: int
    segment_id: int
    model: str
    project_id: str
    unanswered: float = math.inf
    priority: int = 0

    @property
    def background(self) -> bool:
        """True if it runs only where nothing else would."""
        return self.priority == BACKGROUND


_URGENCY = (Batch.infeasible, Batch.due_at, Batch.id, Segment.number)
_PENDING_SEGMENT = (
    *(*_URGENCY, Segment.id, Segment.model, Batch.project_id),
    # One of a paused batch sends nothing more, so others need not wait for it.
    case((Batch.paused_at.is_(None), Segment.requests - Segment.answered), else_=0).label("unanswered"),
    Batch.priority,
)


def goes_on() -> ColumnElement[bool]:
    """Return the condition for batches whose segments may run: in progress, and not paused."""
    return and_(Batch.status == "in_progress", Batch.paused_at.is_(None))


def active(session: Session) -> list[PendingSegment]:
    """Return the segments with a slot: dispatched or running."""
    rows = select(*_PENDING_SEGMENT).join(Segment, Segment.batch_id == Batch.id)
    return [PendingSegment(*row) for row in session.execute(rows.where(Segment.state.in_(("dispatched", "running"))))]


def running(session: Session) -> int:
    return session.scalar(select(func.count()).where(Segment.state == "running")) or 0


def any_waits(session: Session) -> bool:
    return session.scalar(select(Segment.id).where(Segment.state == "pending").limit(1)) is not None


def waiting(session: Session, limit: int) -> list[PendingSegment]:
    """Return pending segments that may start: the most urgent `limit` per model and project."""
    ready = and_(Segment.state == "pending", Segment.not_before <= time.time(), may_run(), holds.may_start())
    queues = session.execute(
        select(Segment.model, Batch.project_id).join(Batch, Batch.id == Segment.batch_id).where(ready).distinct()
    ).all()
    pending: list[PendingSegment] = []
    # A query per queue reads `limit` rows. One query for all would sort every pending segment.
    for model, project_id in queues:
        rows = session.execute(
            select(*_PENDING_SEGMENT)
            .join(Segment, Segment.batch_id == Batch.id)
            .where(ready, Segment.model == model, Batch.project_id == project_id)
            .order_by(Batch.priority.desc(), *_URGENCY)
            .limit(limit)
        )
        pending += [PendingSegment(*row) for row in rows]
    return pending


def beside(session: Session, segment: SegmentLease) -> tuple[dict[str, int], int]:
    """Return the other running segments' requests of the same model: answered ones by class, and all unanswered."""
    rows = session.execute(
        select(Segment.request_class, func.sum(Segment.answered), func.sum(Segment.requests - Segment.answered))
        .where(Segment.state == "running", Segment.model == segment.model["name"], Segment.id != segment.lease.id)
        .group_by(Segment.request_class)
    ).all()
    return {kind: int(answered) for kind, answered, _ in rows}, sum(int(unanswered) for *_, unanswered in rows)


def dispatch(session: Session, segment_id: int, seconds: float) -> int | None:
    """Give a pending segment a slot for `seconds`. Return the new epoch; None if it cannot start."""
    return session.scalar(
        update(Segment)
        .where(Segment.id == segment_id, Segment.state == "pending", _batch_goes_on())
        .values(state="dispatched", epoch=Segment.epoch + 1, lease_expires_at=time.time() + seconds)
        .returning(Segment.epoch)
        .execution_options(synchronize_session=False)
    )


def may_run() -> ColumnElement[bool]:
    """Return the condition for segments that may run, of joined batches."""
    return and_(goes_on(), or_(~Batch.sampling, Segment.number < Batch.sample_segments))


def _batch_goes_on() -> ColumnElement[bool]:
    """Return the condition for segments whose batch lets them run."""
    return select(Batch.id).where(Batch.id == Segment.batch_id, may_run()).exists()


def start(session: Session, segment_id: int, epoch: int, holder: str, seconds: float) -> SegmentLease | None:
    """Acquire the lease on a dispatched segment. None if the message is stale or the batch does not go on.

    Then the segment is pending again, since no other message of its epoch comes.
    """
    batch_id = select(Segment.batch_id).where(Segment.id == segment_id).scalar_subquery()
    moves = and_(Batch.id == batch_id, Batch.status == "in_progress", Batch.attempt_error.is_not(None))
    session.execute(update(Batch).where(moves).values(attempt_error=None).execution_options(synchronize_session=False))
    # The lock on the batch: its status cannot change before this segment runs, so nobody merges a batch that a
    # segment is about to append to.
    if session.scalar(select(Batch.id).where(Batch.id == batch_id, goes_on()).with_for_update(read=True)) is None:
        withdraw(session, Segment.id == segment_id, Segment.epoch == epoch)
        return None
    started = changed(
        session,
        update(Segment)
        .where(Segment.id == segment_id, Segment.epoch == epoch, Segment.state == "dispatched")
        .values(state="running", holder=holder, lease_expires_at=time.time() + seconds),
    )
    if not started:
        return None
    segment, batch, cache_bytes, held, last_chance, capped_key = session.execute(
        select(Segment, Batch, Project.cache_bytes, Hold.reason, holds.is_over(), Budget.key_id)
        .join(Batch, Batch.id == Segment.batch_id)
        .join(Project, Project.id == Batch.project_id)
        .join(Hold, Hold.model == Segment.model, isouter=True)
        .join(Job, Job.id == Batch.job_id, isouter=True)
        .join(Budget, Budget.key_id == func.coalesce(Batch.created_by, Job.created_by), isouter=True)
        .where(Segment.id == segment_id)
    ).one()
    again = next((entry for entry in batch.post_process if entry["step"] == "verify"), {})
    return SegmentLease(
        lease=Lease(Segment, segment_id, epoch),
        batch_id=batch.id,
        **{name: getattr(batch, name) for name in _OF_BATCH},
        **{name: getattr(segment, name) for name in _OF_SEGMENT},
        plan_sha256=segment.plan_sha256 or batch.plan_sha256 or "",
        row_group=segment.number if segment.row_group is None else segment.row_group,
        due_at=math.inf if batch.priority == BACKGROUND else batch.due_at,
        model=batch.models[segment.model],
        # The cache would repeat the answers that are to be verified.
        cache_bytes=None if again else cache_bytes,
        alone=again.get("alone", False),
        replica=again.get("replica"),
        chunks=session.scalars(select(ResultChunk.sha256).where(ResultChunk.segment_id == segment_id)).all(),
        held=held,
        last_chance=bool(last_chance),
        has_limits=bool(batch.stop_when),
        capped_key=capped_key,
    )


def answered(session: Session, batch_id: str, model: str) -> bool:
    statement = select(Segment.id).where(Segment.batch_id == batch_id, Segment.model == model, Segment.answered > 0)
    return session.scalar(statement.limit(1)) is not None


def renew(session: Session, segment: SegmentLease, seconds: float) -> Literal["run", "make_way", "pause", "stop"]:
    """Renew the lease. Return what becomes of the segment: `stop` if its batch ends. Raises LeaseLost.

    One of the background may run, but has to make way for other work.
    """
    segment.lease.renew(session, seconds)
    columns = (Batch.status, Batch.paused_at, Batch.priority)
    batch = session.execute(select(*columns).where(Batch.id == segment.batch_id)).one()
    if batch.status != "in_progress":
        return "stop"
    if batch.paused_at is not None:
        return "pause"
    return "make_way" if batch.priority == BACKGROUND else "run"


def add(session: Session, batch_id: str, added: Sequence[Segment], refused: Mapping[int, str], first: int = 0) -> int:
    """Add segments to a batch, numbered from `first`. Return how many of their requests were refused.

    `refused`: SHA-256 of the result chunk of each segment whose requests were all refused, by its place: it is done.
    """
    for place, segment in enumerate(added):
        segment.batch_id, segment.number = batch_id, first + place
        segment.state = "done" if place in refused else "pending"
    session.add_all(added)
    session.flush()
    for place, sha256 in refused.items():
        segment = added[place]
        values = {"sha256": sha256, "failed": segment.requests, "created_at": time.time()}
        session.add(ResultChunk(batch_id=batch_id, segment_id=segment.id, **values))
    session.flush()
    return sum(added[place].requests for place in refused)


def append(
    session: Session,
    segment: SegmentLease,
    chunk: ResultChunk,
    seconds: Histogram = MappingProxyType({}),
) -> bool:
    """Add a result chunk to the segment and its amounts to the batch. Raises LeaseLost before adding anything.

    False if the segment has the chunk already: the transaction that added it looked as if it had failed.
    """
    segment.lease.guard(session)
    is_same = (ResultChunk.segment_id == segment.lease.id, ResultChunk.sha256 == chunk.sha256)
    if session.scalar(select(ResultChunk.id).where(*is_same)) is not None:
        session.execute(update(Batch).where(Batch.id == segment.batch_id).values(attempt_error=None))
        return False
    answered = Segment.answered + chunk.completed + chunk.failed
    session.execute(update(Segment).where(Segment.id == segment.lease.id).values(attempts=0, answered=answered))
    # The batch first: its row lock keeps other chunks of the batch out, so ids rise in the order of commits, and a
    # reader in that order misses no chunk.
    values: dict[str, Any] = {name: getattr(Batch, name) + (getattr(chunk, name) or 0) for name in AMOUNTS}
    values["attempt_error"] = None
    if seconds:
        stored = select(Batch.latencies).where(Batch.id == segment.batch_id).with_for_update(key_share=True)
        new = {segment.model["name"]: {segment.request_class: seconds}}
        values["latencies"] = latency.merged([session.scalar(stored) or {}, new])
    session.execute(update(Batch).where(Batch.id == segment.batch_id).values(values))
    session.add(chunk)
    if chunk.completed > (chunk.shared_requests or 0):
        holds.engine_answered(session, segment.model["name"])
    return True


def end(session: Session, segment: SegmentLease, *, done: bool, engine: Mapping[str, Any] | None) -> None:
    """Release the segment: done, or pending again with requests left. Raises LeaseLost."""
    state = "done" if done else case((Segment.answered >= Segment.requests, "done"), else_="pending")
    segment.lease.release(session, state=state, engine=engine)


def fail(session: Session, segment: SegmentLease, error: str, delay: float, *, counted: bool) -> None:
    """Release the segment after a failure, pending again after `delay` seconds. Raises LeaseLost.

    Only a counted failure is an attempt. After too many attempts the requests are answered with errors.
    """
    segment.lease.release(
        session, state="pending", error=error, attempts=Segment.attempts + int(counted), not_before=time.time() + delay
    )


def hold_up(session: Session, segment: SegmentLease, reason: str) -> None:
    """Record why a batch in progress does not move, until an answer is appended or another segment starts."""
    batch = and_(Batch.id == segment.batch_id, Batch.status == "in_progress")
    session.execute(update(Batch).where(batch).values(attempt_error=reason))


def recover(session: Session) -> int:
    """Make segments with an expired lease pending again. Return their number."""
    now = time.time()
    lost = update(Segment).where(Segment.lease_expires_at < now).execution_options(synchronize_session=False)
    ended = lost.where(Segment.state.in_(("dispatched", "running")))
    return changed(session, ended.values(state="pending", epoch=Segment.epoch + 1, holder=None))


def withdraw(session: Session, *which: ColumnElement[bool]) -> None:
    """Take back the slots of dispatched segments, those of `which`, whose batch does not go on."""
    session.execute(
        update(Segment)
        .where(Segment.state == "dispatched", ~_batch_goes_on(), *which)
        .values(state="pending", epoch=Segment.epoch + 1)
        .execution_options(synchronize_session=False)
    )


def page(session: Session, batch_id: str, *, after: int | None, limit: int) -> tuple[Sequence[Segment], bool]:
    """Return at most `limit` segments of a batch after number `after`, and if more follow."""
    statement = select(Segment).where(Segment.batch_id == batch_id).order_by(Segment.number).limit(limit + 1)
    if after is not None:
        statement = statement.where(Segment.number > after)
    records = session.scalars(statement).all()
    return records[:limit], len(records) > limit


def chunks(session: Session, batch_id: str) -> Sequence[tuple[str, int]]:
    """Return (SHA-256, lines) of every result chunk of a batch, in the order of appending."""
    rows = session.execute(
        select(ResultChunk.sha256, ResultChunk.completed + ResultChunk.failed)
        .where(ResultChunk.batch_id == batch_id)
        .order_by(ResultChunk.id)
    )
    return [(sha256, lines) for sha256, lines in rows]


def sample_chunks(session: Session, batch: Batch) -> Sequence[str]:
    """Return the result chunks of a batch's sample: all, if it has no more requests than its plan wants."""
    in_sample = true() if batch.sample_segments is None else Segment.number < batch.sample_segments
    return session.scalars(
        select(ResultChunk.sha256)
        .join(Segment, Segment.id == ResultChunk.segment_id)
        .where(Segment.batch_id == batch.id, in_sample)
        .order_by(ResultChunk.id)
    ).all()


def plans(session: Session, batch_id: str) -> list[tuple[str, int]]:
    """Return the plan and the row group of each segment of a batch, in the order of segments."""
    place = func.coalesce(Segment.plan_sha256, Batch.plan_sha256), func.coalesce(Segment.row_group, Segment.number)
    rows = session.execute(
        select(*place)
        .join(Batch, Batch.id == Segment.batch_id)
        .where(Segment.batch_id == batch_id)
        .order_by(Segment.number)
    )
    return [(plan_sha256, row_group) for plan_sha256, row_group in rows]


def timeline(session: Session, batch: Batch) -> list[list[float]]:
    """Return the progress of a batch: at most about TIMELINE points [Unix seconds, answered, tokens, failed so far].

    It is empty before the first answer. An ended batch stores its timeline, since its result chunks are deleted.
    """
    stored = session.scalar(select(Batch.timeline).where(Batch.id == batch.id))
    if stored is not None:
        return stored
    of_batch = ResultChunk.batch_id == batch.id
    first, last = session.execute(
        select(func.min(ResultChunk.created_at), func.max(ResultChunk.created_at)).where(of_batch)
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
            func.sum(ResultChunk.failed),
        )
        .where(of_batch)
        .group_by(cast((ResultChunk.created_at - start) / width, Integer))
        .order_by("at")
    )
    points: list[list[float]] = [[round(start, 1), 0, 0, 0]]
    for at, *amounts in rows:
        sums = (before + int(more) for before, more in zip(points[-1][1:], amounts, strict=True))
        points.append([round(at, 1), *sums])
    return points


def engines(session: Session, batch_id: str) -> dict[str, list[dict[str, Any]]]:
    """Return the distinct descriptions of the engines that answered a batch, by model."""
    by_model: dict[str, list[dict[str, Any]]] = {}
    rows = session.execute(
        select(Segment.model, Segment.engine).where(Segment.batch_id == batch_id).order_by(Segment.number)
    )
    for model, engine in rows:
        descriptions = by_model.setdefault(model, [])
        if engine is not None and engine not in descriptions:
            descriptions.append(engine)
    return by_model
