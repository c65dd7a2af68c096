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

from store.segments import Waiting
from tasks.context import AppContext

log = logging.getLogger(__name__)

ROOM = "batchyard:room"
SECONDS = 120.0
"""How long a model that waits is believed: longer than from one attempt to start its engine to the next."""


class Want(NamedTuple):
    """A model with a segment due then, which finds no room because of engines of the holders."""

    due_at: int
    holders: list[str]
    until: float


def want(context: AppContext, model: str, due_at: int, holders: list[str]) -> None:
    """Note what a segment of the model has found."""
    try:
        context.redis.hset(ROOM, model, json.dumps(Want(due_at, holders, time.time() + SECONDS)))
    except redis.RedisError as error:
        log.warning("want of room not noted: %s", error, extra={"model": model})


def found(context: AppContext, model: str) -> None:
    """Note that the model's engine has its place."""
    try:
        context.redis.hdel(ROOM, model)
    except redis.RedisError as error:
        log.warning("want of room not cleared: %s", error, extra={"model": model})


def wanted(context: AppContext) -> list[Want]:
    """What is wanted now; nothing when Redis is away."""
    try:
        said = cast(list[str], context.redis.hvals(ROOM))
    except redis.RedisError as error:
        log.warning("want of room not read: %s", error)
        return []
    return [want for want in (Want(*json.loads(text)) for text in said) if want.until > time.time()]


def held_back(wants: Iterable[Want], waiting: Iterable[Waiting]) -> set[str]:
    """The models of which nothing begins now: they hold what a model wants whose work is due sooner."""
    due: dict[str, float] = {}
    for entry in waiting:
        due[entry.model] = min(entry.due_at, due.get(entry.model, entry.due_at))
    return {model for want in wants for model in want.holders if due.get(model, 0) > want.due_at}
