"""Demand: how many replicas of each model the queue needs to keep its deadlines, for an autoscaler.

The whole queue is forecast with k replicas of a model, which are k times as fast as one.
"""

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from store import queue, speeds
from store.queue import BacklogEntry
from store.speeds import Throughput
from tasks.context import AppContext
from tasks.port import running_models
from tasks.published import warned
from tasks.scheduling import costs, dispatch, forecast
from tasks.scheduling.costs import Answered, WorkCosts
from tasks.scheduling.policy import Limits, RecentUsage

log = logging.getLogger(__name__)

DEMAND = "batchyard:demand"
MOST = 64
"""The most replicas that a model is said to need."""
FRESH_SECONDS = 60.0
"""A published demand that is older says nothing any more."""


_Published = dict[str, int | None]
"""needed, running, and measured_with: how many replicas there were when the speed was measured."""


@dataclass(frozen=True)
class Demand:
    """The replicas of one model: those that the queue needs, None if it was never measured, and those there last."""

    needed: int | None
    running: int


def replicas_needed(
    entries: Sequence[BacklogEntry],
    answered: Mapping[str, Answered],
    throughputs: Mapping[tuple[str, str], Throughput],
    limits: Limits,
    recent_usage: RecentUsage,
    now: float,
) -> dict[str, int | None]:
    """Return the least replicas of each model that keep all deadlines; `throughputs` are of one replica.

    None for a model that was never measured. Its work is left out, as nobody knows how long it holds up others.
    """
    needed: dict[str, int | None] = dict.fromkeys(sorted({entry.model for entry in entries}))
    # What is out of reach today is not with more replicas.
    measured = [
        entry._replace(infeasible=False)
        for entry in entries
        if costs.throughput_of(entry.model, entry.request_class, throughputs) is not None
    ]
    due = {entry.batch_id: entry.due_at for entry in measured}

    def kept(replicas: Mapping[str, int]) -> set[str]:
        fast = {
            (model, kind): replace(speed, work_per_second=speed.work_per_second * replicas.get(model, 1))
            for (model, kind), speed in throughputs.items()
        }
        forecasts = forecast.forecast(WorkCosts(measured, answered, fast), limits, recent_usage.copy(), now)
        return {batch_id for batch_id, expected in forecasts.items() if expected.at <= due[batch_id]}

    replicas = dict.fromkeys(sorted({entry.model for entry in measured}), MOST)
    possible = kept(replicas)
    to_keep = [entry for entry in measured if entry.batch_id in possible]
    work = forecast.work_due(WorkCosts(to_keep, answered, throughputs))
    for model in replicas:
        # No order of the work does with less than this, so the search need not begin at one.
        least = max((seconds / (due_at - now) for due_at, seconds in work.get(model, [])), default=0.0)
        enough = (
            number
            for number in range(max(1, math.ceil(least - 1e-9)), MOST)
            if possible <= kept({**replicas, model: number})
        )
        replicas[model] = next(enough, MOST)
    return needed | replicas


def update(context: AppContext, running: Mapping[str, int]) -> None:
    """Work out and publish the demand of every served model. `running`: replicas that are there now, by model."""
    now = time.time()
    with context.database.read() as session:
        answered = costs.answered(queue.unfinished(session))
        entries = [entry for entry in queue.backlog(session) if not entry.background]  # it has what is spare
        specs = running_models(context, session)
        throughputs = speeds.throughputs(session, specs)
        limits = dispatch.limits(context, session)
        recent_usage = dispatch.recent_usage(session, {entry.project_id for entry in entries}, now)
    with warned(log, "demand not published"):
        _, before = _published(context)
        # Nothing is measured while no replica is there, so the last speed is that of the last replicas.
        measured_with = {
            name: running.get(name) or before.get(name, {}).get("measured_with") or spec.replicas
            for name, spec in specs.items()
        }
        of_one = {
            key: replace(speed, work_per_second=speed.work_per_second / measured_with[key[0]])
            for key, speed in throughputs.items()
        }
        needed = replicas_needed(entries, answered, of_one, limits, recent_usage, now)
        models = {
            name: {"needed": needed.get(name, 0), "running": running.get(name, 0), "measured_with": replicas}
            for name, replicas in measured_with.items()
        }
        context.redis.set(DEMAND, json.dumps([now, models]))


def read(context: AppContext) -> dict[str, Demand]:
    """Return the published demand of each served model; unknown if it is old or Redis is away."""
    at: float = 0.0
    models: dict[str, _Published] = {}
    with warned(log, "demand not read"):
        at, models = _published(context)
    if time.time() - at > FRESH_SECONDS:
        models = {}
    unknown: _Published = {"needed": None, "running": 0}
    entries = {name: models.get(name, unknown) for name in context.models}
    return {name: Demand(entry["needed"], entry["running"] or 0) for name, entry in entries.items()}


def _published(context: AppContext) -> tuple[float, dict[str, _Published]]:
    at, models = json.loads(cast(str | None, context.redis.get(DEMAND)) or "[0, {}]")
    return at, models
