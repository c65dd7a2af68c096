"""Room on GPUs: while a model waits for what others' engines have, those begin nothing that is due later.

What they run goes on to its end; then their engines have no work, and make way (inference.residents.gpu_eviction).
What is kept here lives in Redis and is forgotten if it is not said again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from typing import NamedTuple, cast

import redis

from store.segments import PendingSegment
from tasks.context import AppContext

log = logging.getLogger(__name__)

DEMANDS = "batchyard:room"
SECONDS = 120.0
"""How long a model that waits is believed: longer than from one attempt to start its engine to the next."""


class Demand(NamedTuple):
    """A model with a segment due then, which finds no room because of engines of the holders."""

    due_at: int
    holders: list[str]
    until: float


def record_demand(context: AppContext, model: str, due_at: int, holders: list[str]) -> None:
    """Note what a segment of the model has found."""
    try:
        context.redis.hset(DEMANDS, model, json.dumps(Demand(due_at, holders, time.time() + SECONDS)))
    except redis.RedisError as error:
        log.warning("want of room not noted: %s", error, extra={"model": model})


def clear_demand(context: AppContext, model: str) -> None:
    """Note that the model's engine has its place."""
    try:
        context.redis.hdel(DEMANDS, model)
    except redis.RedisError as error:
        log.warning("want of room not cleared: %s", error, extra={"model": model})


def demands(context: AppContext) -> list[Demand]:
    """What is wanted now; nothing when Redis is away."""
    try:
        said = cast(list[str], context.redis.hvals(DEMANDS))
    except redis.RedisError as error:
        log.warning("want of room not read: %s", error)
        return []
    pending = (Demand(*json.loads(text)) for text in said)
    return [demand for demand in pending if demand.until > time.time()]


def blocked(demands: Iterable[Demand], waiting: Iterable[PendingSegment]) -> set[str]:
    """The models of which nothing begins now: they hold what a model wants whose work is due sooner."""
    due: dict[str, float] = {}
    for entry in waiting:
        due[entry.model] = min(entry.due_at, due.get(entry.model, entry.due_at))
    return {model for demand in demands for model in demand.holders if due.get(model, 0) > demand.due_at}
