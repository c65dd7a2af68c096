"""Deadlines: forecasts every unfinished batch now and then, publishes it, and warns of a batch before it is late."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any, cast

import redis
from sqlalchemy.orm import Session

from store import batches, queue, speeds
from store.records import Batch, Sla
from tasks.context import AppContext
from tasks.scheduling import dispatch, forecast
from tasks.scheduling.forecast import Forecast
from tasks.scheduling.policy import RecentUsage

log = logging.getLogger(__name__)

FORECASTS = "batchyard:forecasts"
BACKLOG = "batchyard:backlog"
AT_RISK = 0.7
"""The part of its window after which a batch that has less than this part answered is at risk."""


def sla(now: float, created_at: float, deadline: float, done: float, at: float | None) -> Sla:
    """The SLA state of a batch that has not ended.

    Args:
        done: the part of it that is answered, from 0 to 1.
        at: when it will be done; None if that is not known.
    """
    if now >= deadline:
        return "late"
    if at is not None and at > deadline:
        return "at_risk"
    gone = (now - created_at) / (deadline - created_at)
    return "at_risk" if gone >= AT_RISK and done < AT_RISK else "on_track"


def deadline(batch: Batch) -> int:
    """When a batch should be done, in Unix seconds: its project's tier may say sooner than its window."""
    return min(batch.due_at, batch.expires_at)


def tick(context: AppContext) -> None:
    """Forecast the whole queue, publish it, and set the SLA state of every batch whose state has changed."""
    moment = time.time()
    with context.database.read() as session:
        unfinished = queue.unfinished(session)
        entries = queue.backlog(session)
        configurations = {name: spec.config_sha256 for name, spec in context.models.items()}
        throughputs = speeds.throughputs(session, configurations)
        limits = dispatch.limits(context, session)
        recent_usage = RecentUsage(
            speeds.recent_usage(session, {entry.project_id for entry in entries}, moment), moment
        )
    answered = forecast.answered(unfinished)
    found = forecast.forecast(entries, answered, throughputs, limits, recent_usage, moment)
    validating = read(context, [batch.id for batch in unfinished if batch.status == "validating"])
    _publish(context, found | validating, forecast.work_due(entries, answered, throughputs))
    soonest = forecast.soonest(entries, answered, throughputs, moment)
    for batch in unfinished:
        _judge(context, batch, found.get(batch.id), moment)
        infeasible = soonest.get(batch.id, 0.0) > batch.expires_at
        if batch.status == "in_progress" and batch.infeasible != infeasible:
            with context.database.write() as session:
                batches.set_infeasible(session, batch, infeasible=infeasible)
            log.info("batch is %s reach", "out of" if infeasible else "within", extra={"batch_id": batch.id})


def _publish(
    context: AppContext, found: Mapping[str, Forecast], seconds_due: Mapping[str, list[tuple[int, float]]]
) -> None:
    """Replace what is published by this. A Redis that is away is no reason to stop."""
    values: dict[Any, Any] = {batch_id: _written(entry) for batch_id, entry in found.items()}
    try:
        with context.redis.pipeline() as pipeline:
            pipeline.delete(FORECASTS)
            if values:
                pipeline.hset(FORECASTS, mapping=values)
            pipeline.set(BACKLOG, json.dumps(seconds_due))
            pipeline.execute()
    except redis.RedisError as error:
        log.warning("forecasts not published: %s", error)


def _written(entry: Forecast) -> str:
    return json.dumps([entry.at, entry.earliest, entry.latest])


def publish(context: AppContext, batch_id: str, entry: Forecast) -> None:
    """Publish what is expected of a new batch, until the whole queue is looked at."""
    try:
        context.redis.hset(FORECASTS, batch_id, _written(entry))
    except redis.RedisError as error:
        log.warning("forecast not published: %s", error, extra={"batch_id": batch_id})


def read(context: AppContext, batch_ids: list[str]) -> dict[str, Forecast]:
    """The published forecast of each batch that has one. Raises nothing when Redis is away: nothing is known then."""
    if not batch_ids:
        return {}
    try:
        values = cast(list[str | None], context.redis.hmget(FORECASTS, batch_ids))
    except redis.RedisError as error:
        log.warning("forecasts not read: %s", error)
        return {}
    return {batch_id: Forecast(*json.loads(value)) for batch_id, value in zip(batch_ids, values, strict=True) if value}


def seconds_due(context: AppContext, model: str, due_at: int) -> float:
    """Seconds of a model's work that go before what is due then, as published; 0 where nothing is known."""
    try:
        published = cast(str | None, context.redis.get(BACKLOG))
    except redis.RedisError as error:
        log.warning("backlog not read: %s", error)
        return 0.0
    ahead = json.loads(published or "{}").get(model, [])
    return max((seconds for due, seconds in ahead if due <= due_at), default=0.0)


def warn(session: Session, batch: Batch, state: Sla, done_at: float | None) -> None:
    """Set a batch's SLA state, and tell of it, in log and event, if it was not told of before."""
    at = None if done_at is None else round(done_at)
    due = deadline(batch)
    if batches.set_sla(session, batch, state, deadline=due, done_at=at):
        level = logging.INFO if state == "on_track" else logging.WARNING
        log.log(level, "batch is %s", state, extra={"batch_id": batch.id, "sla": state, "deadline": due, "done_at": at})


def finalize_sla(session: Session, batch: Batch) -> None:
    """Set the SLA state in which a batch ends: whether it was done in time."""
    state = sla(time.time(), batch.created_at, deadline(batch), done=1.0, at=None)
    if state != batch.sla:
        warn(session, batch, state, None)


def _judge(context: AppContext, batch: Batch, expected: Forecast | None, moment: float) -> None:
    if batch.status == "cancelling" or batch.outcome == "completed":
        return  # nothing is left that could be late
    if batch.status == "validating" and moment < deadline(batch):
        return  # what submission has said of it stands until its requests are known
    done = (batch.completed + batch.failed) / batch.total if batch.total else 0.0
    state = sla(moment, batch.created_at, deadline(batch), done, expected.at if expected else None)
    if state != batch.sla:
        with context.database.write() as session:
            warn(session, batch, state, expected.at if expected else None)
