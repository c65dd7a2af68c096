"""Deadlines: forecasts of all unfinished batches, published at intervals, and warnings before a batch is late."""

import json
import logging
import time
from collections.abc import Set
from functools import partial
from typing import cast

from sqlalchemy.orm import Session

from store import batches, holds, queue
from store.records import Batch, Job, Sla
from tasks import published
from tasks.context import AppContext
from tasks.port import port, running_models
from tasks.scheduling import costs, dispatch, forecast, states
from tasks.scheduling.costs import WorkCosts
from tasks.scheduling.forecast import Forecast
from tasks.scheduling.states import Engines
from tasks.scheduling.throughput import expected_finish, measured_throughputs

log = logging.getLogger(__name__)

FORECASTS = "batchyard:forecasts"
BACKLOG = "batchyard:backlog"
AT_RISK = 0.7
"""A batch is at risk if this share of its window is over and a smaller share of its requests is answered."""


def sla(
    now: float, created_at: float, deadline: float, answered_share: float, at: float | None, *, held: bool = False
) -> Sla:
    """Return the SLA state of a batch that has not ended.

    `at` is its expected end. While it is `held`, nobody can say that it will be in time.
    """
    if now >= deadline:
        return "late"
    if held:
        return "at_risk"
    if at is not None and at > deadline:
        return "at_risk"
    elapsed_share = (now - created_at) / (deadline - created_at)
    return "at_risk" if elapsed_share >= AT_RISK and answered_share < AT_RISK else "on_track"


def deadline(batch: Batch | Job) -> int:
    """Return the deadline (Unix seconds), by window and tier."""
    return min(batch.due_at, batch.expires_at)


def tick(context: AppContext, engines: Engines | None = None) -> None:
    """Forecast the queue, and update SLA states. `engines`: None if all models have theirs."""
    now = time.time()
    engines = engines or Engines(frozenset(context.models), {})
    with context.database.read() as session:
        unfinished = queue.unfinished(session)
        held = holds.all_of(session)
        backlog, unserved = queue.backlog(session), holds.unserved(session)
        backlog += port().backlog(session)
        models = running_models(context, session).keys()
        # Those on hold wait, and hold up none.
        entries = [entry for entry in backlog if entry.model not in held and entry.model in models]
        throughputs = measured_throughputs(context, session)
        limits = dispatch.limits(context, session)
        recent_usage = dispatch.recent_usage(session, {entry.project_id for entry in entries}, now)
        finishes = {batch.id: expected_finish(session, batch.post_process, batch.total) for batch in unfinished}
    _hold_unserved(context, models, {entry.model for entry in backlog}, unserved)
    work_costs = WorkCosts(entries, costs.answered(unfinished), throughputs)
    answers = forecast.forecast(work_costs, limits, recent_usage, now)
    waiting = {entry.batch_id for entry in backlog if entry.model in held}
    waiting |= {batch.id for batch in unfinished if batch.attempt_error is not None}
    ends = partial(forecast.with_ends, answers, entries, throughputs, engines, now, drains=False)
    forecasts_of_jobs = port().forecasts(context, unfinished, ends, throughputs, waiting, now)
    answers = forecast.with_ends(answers, entries, throughputs, engines, now)
    with_answers = {batch.id for batch in unfinished if batch.completed + batch.failed}
    forecasts = {
        batch_id: forecast.later(expected, finishes[batch_id], running=batch_id in with_answers)
        for batch_id, expected in answers.items()
        if batch_id in finishes
    }
    validating = read(context, [batch.id for batch in unfinished if batch.status == "validating"])
    finishing = {
        batch.id: forecast.finishing(batch.finalizing_at or now, finishes[batch.id], now)
        for batch in unfinished
        if batch.status == "finalizing"
    }
    published_forecasts = forecasts | validating | finishing | forecasts_of_jobs
    seconds_due = forecast.work_due(work_costs)
    with published.warned(log, "forecasts not published"), context.redis.pipeline() as pipeline:
        published.replace(pipeline, FORECASTS, {key: json.dumps(entry) for key, entry in published_forecasts.items()})
        pipeline.set(BACKLOG, json.dumps(seconds_due))
        pipeline.execute()
    usual = {model: speed.start.seconds for (model, _), speed in throughputs.items() if speed.start is not None}
    states.publish(
        context,
        states.of_queue([entry for entry in entries if entry.batch_id in finishes], with_answers, engines, usual),
    )
    soonest = forecast.soonest(work_costs, now)
    for batch in unfinished:
        _update_sla(context, batch, forecasts.get(batch.id), now, held=batch.id in waiting)
        infeasible = soonest.get(batch.id, 0.0) > batch.expires_at
        if batch.status == "in_progress" and batch.infeasible != infeasible:
            with context.database.write() as session:
                batches.set_infeasible(session, batch, infeasible=infeasible)
            log.info("batch is %s reach", "out of" if infeasible else "within", extra={"batch_id": batch.id})


def _hold_unserved(context: AppContext, models: Set[str], waiting: Set[str], unserved: Set[str]) -> None:
    """Hold waiting models that models.toml has no more; release those that are back."""
    gone, back = waiting - models - unserved, unserved & models
    if not gone and not back:
        return
    with context.database.write() as session:
        for model in gone:
            holds.hold_unserved(session, model)
        for model in back:
            holds.release(session, model)
    for model in gone:
        log.error("model on hold: it is not served any more", extra={"model": model})
    for model in back:
        log.info("model is served again", extra={"model": model})


def publish(context: AppContext, batch_id: str, entry: Forecast) -> None:
    """Publish the forecast of a new batch until the next tick."""
    with published.warned(log, "forecast not published", batch_id=batch_id):
        context.redis.hset(FORECASTS, batch_id, json.dumps(entry))


def read(context: AppContext, batch_ids: list[str]) -> dict[str, Forecast]:
    """Return the published forecasts; none if Redis is away."""
    values = published.read(context, FORECASTS, batch_ids, "forecasts")
    return {batch_id: Forecast(*json.loads(value)) for batch_id, value in values.items()}


def work_due(context: AppContext, model: str) -> list[tuple[int, float]]:
    """Return the published (due_at, seconds of a model's work due by then)."""
    backlog: str | None = None
    with published.warned(log, "backlog not read"):
        backlog = cast(str | None, context.redis.get(BACKLOG))
    return [(due_at, seconds) for due_at, seconds in json.loads(backlog or "{}").get(model, [])]


def warn(session: Session, batch: Batch, state: Sla, done_at: float | None) -> None:
    """Set a batch's SLA state. Log it and emit its event the first time the state is reached."""
    at = None if done_at is None else round(done_at)
    due = deadline(batch)
    if batches.set_sla(session, batch, state, deadline=due, done_at=at):
        level = logging.INFO if state == "on_track" else logging.WARNING
        log.log(level, "batch is %s", state, extra={"batch_id": batch.id, "sla": state, "deadline": due, "done_at": at})


def finalize_sla(session: Session, batch: Batch) -> None:
    state = sla(time.time(), batch.created_at, deadline(batch), answered_share=1.0, at=None)
    if state != batch.sla:
        warn(session, batch, state, None)


def _update_sla(context: AppContext, batch: Batch, expected: Forecast | None, now: float, *, held: bool) -> None:
    waits = batch.open and batch.job_id is None and batch.completed + batch.failed == batch.total
    if batch.status == "cancelling" or batch.outcome == "completed" or waits:
        return  # no request remains that could be late
    if batch.status == "validating" and now < deadline(batch):
        return  # the state set at submission stands until validation has counted the requests
    answered_share = (batch.completed + batch.failed) / batch.total if batch.total else 0.0
    state = sla(now, batch.created_at, deadline(batch), answered_share, expected.at if expected else None, held=held)
    if state != batch.sla:
        with context.database.write() as session:
            warn(session, batch, state, expected.at if expected else None)
