"""The queue of all projects or one: waiting and running segments and their speed, for metrics and forecasts."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from sqlalchemy import case, func, select, true
from sqlalchemy.orm import Session

from batchyard.statuses import BACKGROUND, JOB_RUNNING, RUNNING
from store import holds, speeds
from store.records import Batch, Job, Segment, Sla
from store.segments import may_run
from store.speeds import RequestClass
from store.work.lifecycle import Lifecycle, Record


@dataclass(frozen=True)
class ModelQueue:
    """One model's unfinished segments and requests.

    Rates are over the last minute; None without measurements. `held` is why its batches wait (store.holds).
    `oldest_seconds` is the age of the oldest batch with a pending segment.
    """

    model: str
    pending_segments: int
    running_segments: int
    waiting_requests: int
    oldest_seconds: float | None
    rows_per_second: float | None
    tokens_per_second: float | None
    held: str | None


@dataclass(frozen=True)
class QueueSnapshot:
    """Unfinished batches by status and by SLA state, and segments by model.

    `next_deadline_seconds` is negative if their first deadline has passed; None without a batch.
    """

    batches: dict[str, int]
    sla: dict[str, int]
    paused: int
    next_deadline_seconds: float | None
    models: list[ModelQueue]


def any_unfinished(session: Session) -> bool:
    batches = select(Batch.id).where(Batch.status.in_(RUNNING))
    jobs = select(Job.id).where(Job.status.in_(JOB_RUNNING))
    return any(session.scalar(unfinished.limit(1)) is not None for unfinished in (batches, jobs))


def snapshot(session: Session, project_id: str | None = None) -> QueueSnapshot:
    """Return the queue now, of one project or of all. Its cost depends on unfinished batches alone."""
    now = time.time()
    scope = true() if project_id is None else Batch.project_id == project_id
    batches = dict.fromkeys(RUNNING, 0)
    sla = dict.fromkeys(get_args(Sla), 0)
    rows = session.execute(
        select(Batch.status, Batch.sla, func.count(), func.count(Batch.paused_at), func.min(Batch.expires_at))
        .where(Batch.status.in_(RUNNING), scope)
        .group_by(Batch.status, Batch.sla)
    ).all()
    for status, state, count, *_ in rows:
        batches[status] += count
        sla[state] += count
    segments = session.execute(
        select(Segment.model, Segment.state, func.count(), func.sum(Segment.requests), func.min(Batch.created_at))
        .join(Batch, Batch.id == Segment.batch_id)
        .where(may_run(), Segment.state != "done", scope)
        .group_by(Segment.model, Segment.state)
    ).all()
    rates, held = speeds.recent(session, Segment.model, project_id=project_id), holds.all_of(session)
    models = []
    for model in sorted({row[0] for row in segments} | rates.keys()):
        states = {row[1]: row[2:] for row in segments if row[0] == model}
        pending, requests, oldest = states.pop("pending", (0, 0, None))
        rows_per_second, tokens_per_second = rates.get(model, (None, None))
        models.append(
            ModelQueue(
                model=model,
                pending_segments=pending,
                running_segments=sum(count for count, _, _ in states.values()),
                waiting_requests=int(requests),
                oldest_seconds=None if oldest is None else now - oldest,
                rows_per_second=rows_per_second,
                tokens_per_second=tokens_per_second,
                held=held[model].reason if model in held else None,
            )
        )
    deadlines = [deadline for *_, deadline in rows]
    next_deadline = min(deadlines) - now if deadlines else None
    return QueueSnapshot(batches, sla, sum(row[3] for row in rows), next_deadline, models)


class BacklogEntry(NamedTuple):
    """Pending segments of one batch, model and class together, or one active segment."""

    batch_id: str
    project_id: str
    infeasible: bool
    due_at: int
    model: str
    request_class: RequestClass
    active: bool
    segments: int
    requests: int
    bytes: int
    answered: int
    priority: int = 0

    @property
    def background(self) -> bool:
        """True if it runs only where nothing else would."""
        return self.priority == BACKGROUND


def backlog(session: Session) -> list[BacklogEntry]:
    """Return the segments that are not done, over all batches in progress that are not paused."""
    of_batch = (Segment.batch_id, Batch.project_id, Batch.infeasible, Batch.due_at)
    columns = (*of_batch, Segment.model, Segment.request_class)
    sums = [func.sum(column) for column in (Segment.requests, Segment.bytes, Segment.answered)]
    active = case((Segment.state == "pending", 0), else_=Segment.id)
    rows = session.execute(
        select(*columns, active, func.count(), *sums, Batch.priority)
        .join(Batch, Batch.id == Segment.batch_id)
        .where(may_run(), Segment.state.in_(("pending", "dispatched", "running")))
        .group_by(*columns, Batch.priority, active)
    )
    return [BacklogEntry(*row[:6], bool(row[6]), row[7], *map(int, row[8:])) for row in rows]  # type: ignore[call-arg]


def jobs(session: Session) -> Sequence[Job]:
    return session.scalars(select(Job).where(Job.status == "in_progress")).all()


def backlog_of_job(job: Job, segment_requests: int) -> list[BacklogEntry]:
    """Return a job's requests outside any batch, as pending segments under its id. A paused job has none."""
    requests = ((job.ahead or {}).get("requests") or {}) if job.paused_at is None else {}
    return [
        BacklogEntry(
            batch_id=job.id,
            project_id=job.project_id,
            infeasible=job.infeasible,
            due_at=job.due_at,
            model=model,
            request_class="decode",
            active=False,
            segments=math.ceil(number / segment_requests),
            requests=math.ceil(number),
            bytes=0,
            answered=0,
        )
        for model, number in requests.items()
        if number >= 1
    ]


@dataclass(frozen=True)
class JobsOfRecipe:
    """The jobs of a recipe that have a status, with their items by state."""

    recipe: str
    status: str
    jobs: int
    items: dict[str, int]
    restarted: int


def unfinished_jobs(session: Session) -> list[JobsOfRecipe]:
    # Once a job stops, all its items without an end have one.
    stopped = Job.expired_items + Job.cancelled_items > 0
    ended = Job.completed + Job.failed + Job.stuck
    states = {
        "pending": case((stopped, 0), else_=Job.total - Job.admitted),
        "live": case((stopped, 0), else_=Job.admitted - ended - Job.waiting_for_verdict),
        "waiting_for_verdict": case((stopped, 0), else_=Job.waiting_for_verdict),
        "completed": Job.completed,
        "failed": Job.failed,
        "stuck": Job.stuck,
        "expired": Job.expired_items,
        "cancelled": Job.cancelled_items,
    }
    sums = [func.sum(column) for column in (*states.values(), Job.restarted)]
    rows = session.execute(
        select(Job.recipe, Job.status, func.count(), *sums)
        .where(Job.status.in_(JOB_RUNNING))
        .group_by(Job.recipe, Job.status)
        .order_by(Job.recipe, Job.status)
    )
    return [
        JobsOfRecipe(recipe, status, jobs, dict(zip(states, map(int, items), strict=True)), int(restarted))
        for recipe, status, jobs, *items, restarted in rows
    ]


def due_first(session: Session, life: Lifecycle[Record], limit: int) -> Sequence[Record]:
    """Return unfinished batches or jobs, earliest due first."""
    statement = select(life.record).where(life.record.status.in_(life.running))
    return session.scalars(statement.order_by(life.record.due_at, life.record.id).limit(limit)).all()


def unfinished(session: Session) -> Sequence[Batch]:
    return session.scalars(select(Batch).where(Batch.status.in_(RUNNING))).all()
