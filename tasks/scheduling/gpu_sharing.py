"""GPU sharing: models that hold GPUs another model waits for start no segment that is due later.

Their running segments go on to the end. Then their engines are idle and can be evicted
(inference.residents.gpu_eviction). And while they have segments due sooner, the model that waits starts none: it would
hold a slot in vain. Demands live in Redis and expire unless they are renewed.
"""

import json
import logging
import math
import time
from collections.abc import Iterable
from typing import NamedTuple, cast

from store.segments import PendingSegment
from tasks.context import AppContext
from tasks.published import warned

log = logging.getLogger(__name__)

DEMANDS = "batchyard:room"
SECONDS = 120.0
"""Lifetime of a demand, longer than the time between two attempts to start an engine."""


class EngineDemand(NamedTuple):
    """A model whose engine finds no free GPU because of the engines of `holders`.

    `due_at` is when its segment is due, infinite for one of the background; `until` is when the demand expires.
    """

    due_at: float
    holders: list[str]
    until: float
    model: str = ""


def record_demand(context: AppContext, model: str, due_at: float, holders: list[str]) -> None:
    with warned(log, "want of room not noted", model=model):
        context.redis.hset(DEMANDS, model, json.dumps(EngineDemand(due_at, holders, time.time() + SECONDS, model)))


def clear_demand(context: AppContext, model: str) -> None:
    """Record that the model's engine has its GPUs."""
    with warned(log, "want of room not cleared", model=model):
        context.redis.hdel(DEMANDS, model)


def demands(context: AppContext) -> list[EngineDemand]:
    """Return the demands that have not expired. Return none if Redis is away."""
    values: list[str] = []
    with warned(log, "want of room not read"):
        values = cast(list[str], context.redis.hvals(DEMANDS))
    pending = (EngineDemand(*json.loads(value)) for value in values)
    return [demand for demand in pending if demand.until > time.time()]


def blocked(demands: Iterable[EngineDemand], waiting: Iterable[PendingSegment]) -> set[str]:
    """Return the models that may start no segment now.

    Those with GPUs that a model with work due sooner waits for; and one that waits for GPUs of those with work due
    sooner.
    """
    due: dict[str, float] = {}
    for entry in waiting:
        due_at = math.inf if entry.background else entry.due_at
        due[entry.model] = min(due_at, due.get(entry.model, due_at))
    blocked: set[str] = set()
    for demand in demands:
        blocked.update(model for model in demand.holders if due.get(model, 0) > demand.due_at)
        if min((due.get(model, math.inf) for model in demand.holders), default=math.inf) < due.get(demand.model, 0):
            blocked.add(demand.model)
    return blocked
