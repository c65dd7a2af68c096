"""Limits at which a batch or a job pauses: shares of its answers, tokens and cost."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from batchyard.models import ModelSpec
from store import events
from store.accounting import usage
from store.jobs import stages
from store.records import Batch, Job, ResultChunk, Segment, now

ERROR = 0.005
"""Probability that a limit ever pauses a batch whose true share is not above it."""
CHUNKS = 256
"""Result chunks, the last ones, from each of which on failures are tested, beside all: servers break in mid-batch."""
_GRID = 400


def check(session: Session, batch_id: str) -> None:
    """Pause a batch that has surely exceeded a limit of `stop_when`, with an event `batch.stopped`."""
    batch = session.scalars(
        select(Batch).where(Batch.id == batch_id).with_for_update().execution_options(populate_existing=True)
    ).one()
    if batch.status != "in_progress" or (batch.completed + batch.failed >= batch.total and not batch.open):
        return  # nothing is left to stop
    _stop(session, batch, [batch])


def check_job(session: Session, job: Job) -> None:
    """Pause a job whose batches have surely exceeded a limit together, with an event `job.stopped`.

    The caller holds the job's row.
    """
    if job.stop_when and job.paused_at is None:
        _stop(session, job, session.scalars(select(Batch).where(Batch.job_id == job.id)).all())


def _stop(session: Session, work: Batch | Job, batches: Sequence[Batch]) -> None:
    limits = work.stop_when or {}
    for name, limit in limits.items():
        value = _exceeds(session, batches, name, limit)
        if value is None:
            continue
        left = {other: one for other, one in limits.items() if other != name}
        work.stop_when = left or None
        by = f"its limit of {name}"
        if isinstance(work, Job):
            stages.pause(session, work, by)
        else:
            work.paused_at, work.paused_by = work.paused_at or now(), by
        type_: events.Type = "job.stopped" if isinstance(work, Job) else "batch.stopped"
        events.record(session, work, type_, limit={name: limit}, value=value)
        return


def _exceeds(session: Session, batches: Sequence[Batch], name: str, limit: float) -> float | None:
    """Return the value that is surely above the limit; None if none is."""
    if name == "cost":
        costs = usage.costs(session, [batch.id for batch in batches])
        spent = float(sum((sum(cost.amounts.values()) for cost in costs.values()), Fraction(0)))
        return spent if spent >= limit else None
    if name == "tokens":
        tokens = sum(batch.input_tokens + batch.output_tokens for batch in batches)
        return tokens if tokens >= limit else None
    # Not what validation has refused, before anything ran.
    failed = sum(batch.failed - batch.refused for batch in batches)
    flaw = {"length": "cut_off"}.get(name, name)
    found = failed if name == "failed" else sum(getattr(batch, flaw) for batch in batches)
    answered = sum(batch.completed for batch in batches) + failed
    # Failures come fast: what the engines still have counts as good.
    in_flight = sum(_in_flight(session, batch) for batch in batches)
    return exceeded(limit, found, answered, in_flight, _chunks(session, batches) if name == "failed" else None)


def _chunks(session: Session, batches: Sequence[Batch]) -> tuple[int, np.ndarray]:
    """Return the number of result chunks, and the counts of the last ones: failed, completed."""
    of_engines = Segment.epoch > 0  # 0: refused in validation, unseen by an engine
    query = select(ResultChunk.failed, ResultChunk.completed).join(Segment, Segment.id == ResultChunk.segment_id)
    query = query.where(ResultChunk.batch_id.in_([batch.id for batch in batches]), of_engines)
    number = session.scalar(select(func.count()).select_from(query.subquery())) or 0
    last = session.execute(query.order_by(ResultChunk.id.desc()).limit(CHUNKS)).all()
    return number, np.array(last[::-1], dtype=float).reshape(-1, 2)


def exceeded(
    limit: float, found: float, answered: float, in_flight: int, chunks: tuple[int, np.ndarray] | None = None
) -> float | None:
    """Return the share of what was found that shows most, if the shares are surely above the limit, else None.

    `chunks`: the number of chunks, and rows of (found, others) of the last ones. From each of these on the share is
    tested, too: a weighted mean of e-values is one. So a fault in the middle of a batch is seen soon.
    """
    counts, of, weights = np.array([found], float), np.array([answered], float), np.ones(1)
    if chunks is not None:
        number, last = chunks
        since = np.cumsum(last[::-1], axis=0)[::-1]
        place = number - np.arange(len(last), 0, -1) + 1
        counts, of = np.append(counts, since[:, 0]), np.append(of, since.sum(axis=1))
        weights = np.append(weights, 1 / (place * (place + 1))) / 2  # their sum is 1 at most
    logs = evidence(counts, of + in_flight, limit) + np.log(weights)
    if np.logaddexp.reduce(logs) < -math.log(ERROR):
        return None
    most = int(np.argmax(logs))
    return float(counts[most] / of[most])


def _in_flight(session: Session, batch: Batch) -> int:
    """Return how many of a batch's requests its engines may have now."""
    rows = session.execute(
        select(Segment.model, func.sum(Segment.requests - Segment.answered))
        .where(Segment.batch_id == batch.id, Segment.state == "running")
        .group_by(Segment.model)
    )
    specs = {name: ModelSpec.model_validate(config) for name, config in batch.models.items()}
    return sum(min(int(left), specs[model].in_flight() * specs[model].replicas) for model, left in rows)


def evidence(found: npt.ArrayLike, answered: npt.ArrayLike, limit: float) -> np.ndarray:
    """Return the logs of e-values against "the share is at most `limit`", however often one looks.

    Each is the likelihood ratio of a uniform mixture of all larger shares against the limit, a test supermartingale
    (Robbins 1970; Howard, Ramdas et al. 2021). It assumes that the answers so far are like the others.
    """
    count, of = np.asarray(found, float)[..., None], np.asarray(answered, float)[..., None]
    shares = limit + (1 - limit) * (np.arange(_GRID) + 0.5) / _GRID
    logs = count * np.log(shares / limit) + (of - count) * np.log((1 - shares) / (1 - limit))
    above = (count > limit * of)[..., 0]
    return np.where(above, np.logaddexp.reduce(logs, axis=-1) - math.log(_GRID), -math.inf)
