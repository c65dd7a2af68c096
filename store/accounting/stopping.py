"""Limits at which a batch pauses: shares of its answers, tokens and cost."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from batchyard.models import ModelSpec
from store import events
from store.accounting import usage
from store.records import Batch, Segment, now

ERROR = 0.005
"""Probability that a limit ever pauses a batch whose true share is not above it."""
_GRID = 400


def check(session: Session, batch_id: str) -> None:
    """Pause a batch that has surely exceeded a limit of `stop_when`, with an event `batch.stopped`."""
    batch = session.scalars(
        select(Batch).where(Batch.id == batch_id).with_for_update().execution_options(populate_existing=True)
    ).one()
    if batch.completed + batch.failed >= batch.total:
        return  # nothing is left to stop
    limits = batch.stop_when or {}
    for name, limit in limits.items():
        value = _exceeds(session, batch, name, limit)
        if value is None:
            continue
        left = {other: one for other, one in limits.items() if other != name}
        paused = {"paused_at": func.coalesce(Batch.paused_at, now()), "paused_by": f"its limit of {name}"}
        session.execute(update(Batch).where(Batch.id == batch_id).values(stop_when=left or None, **paused))
        events.record(session, batch, "batch.stopped", limit={name: limit}, value=value)
        return


def _exceeds(session: Session, batch: Batch, name: str, limit: float) -> float | None:
    """Return the value that is surely above the limit; None if none is."""
    if name == "cost":
        cost = usage.costs(session, [batch.id]).get(batch.id)
        spent = float(sum(cost.amounts.values(), Fraction(0))) if cost else 0.0
        return spent if spent >= limit else None
    if name == "tokens":
        tokens = batch.input_tokens + batch.output_tokens
        return tokens if tokens >= limit else None
    # Not what validation has refused, before anything ran.
    failed = batch.failed - batch.refused
    found = {"failed": failed, "length": batch.cut_off, "empty": batch.empty, "invalid": batch.invalid}[name]
    answered = batch.completed + failed
    if found <= limit * answered:
        return None
    # Failures come fast: what the engines still have counts as good.
    looked_at = answered + _in_flight(session, batch)
    return found / answered if evidence(found, looked_at, limit) >= -math.log(ERROR) else None


def _in_flight(session: Session, batch: Batch) -> int:
    """Return how many of a batch's requests its engines may have now."""
    rows = session.execute(
        select(Segment.model, func.sum(Segment.requests - Segment.answered))
        .where(Segment.batch_id == batch.id, Segment.state == "running")
        .group_by(Segment.model)
    )
    specs = {name: ModelSpec.model_validate(config) for name, config in batch.models.items()}
    return sum(min(int(left), specs[model].in_flight() * specs[model].replicas) for model, left in rows)


def evidence(found: int, answered: int, limit: float) -> float:
    """Return the log of an e-value against "the share is at most `limit`", however often one looks.

    It is the likelihood ratio of a uniform mixture of all larger shares against the limit, a test supermartingale
    (Robbins 1970; Howard, Ramdas et al. 2021). It assumes that the answers so far are like the others.
    """
    if not answered or found <= limit * answered:
        return -math.inf
    shares = limit + (1 - limit) * (np.arange(_GRID) + 0.5) / _GRID
    logs = found * np.log(shares / limit) + (answered - found) * np.log((1 - shares) / (1 - limit))
    return float(np.logaddexp.reduce(logs) - math.log(_GRID))
