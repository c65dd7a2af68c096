"""Engines: which resident engines there are and what they do, published by the processes that work with them.

Only those have joined the Ray cluster. Nobody asks an idle engine, so what was said of it last stands until it must
have stopped itself.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

import redis

from batchyard.models import ModelSpec
from inference.engines import registry
from inference.requests.context_length import ContextLength
from tasks.context import AppContext

log = logging.getLogger(__name__)

ENGINES = "batchyard:engines"
INTERVAL_SECONDS = 5.0

State = Literal["starting", "busy", "idle"]


@dataclass(frozen=True)
class EngineState:
    """One resident engine. `answered` and `in_flight` count requests; `seen_at` is when it said so, in Unix seconds.

    `endpoints` are the servers elsewhere that it asks, as `inference.engine.Engine.endpoints` has them.
    """

    name: str
    model: str
    state: State
    answered: int
    in_flight: int
    idle_seconds: float
    seen_at: float
    endpoints: list[dict[str, Any]] = field(default_factory=list)


def publish(context: AppContext, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Publish what `inference.residents.directory.states` has found; an engine that has not answered is starting."""
    moment = time.time()
    values: dict[Any, Any] = {}
    for name, said in states.items():
        state: State = "starting" if "in_flight" not in said else "busy" if said["in_flight"] else "idle"
        numbers = (said.get("asked", 0), said.get("in_flight", 0), said.get("idle_seconds", 0.0))
        values[name] = json.dumps(
            asdict(EngineState(name, said["model"], state, *numbers, moment, said.get("endpoints", [])))
        )
    try:
        with context.redis.pipeline() as pipeline:
            pipeline.delete(ENGINES)
            if values:
                pipeline.hset(ENGINES, mapping=values)
            pipeline.execute()
    except redis.RedisError as error:
        log.warning("engine states not published: %s", error)


def read(context: AppContext) -> list[EngineState]:
    """The engines that have not stopped themselves since they were seen. Raises redis.RedisError."""
    moment = time.time()
    values = cast(dict[str, str], context.redis.hgetall(ENGINES))
    found = [EngineState(**json.loads(value)) for value in values.values()]
    most = context.settings.engine_idle_seconds
    alive = [engine for engine in found if engine.idle_seconds + moment - engine.seen_at <= most]
    return sorted(alive, key=lambda engine: engine.name)


def context_length(spec: ModelSpec) -> int | None:
    """Tokens that prompt and answer may have together with a model; None where only its engine knows."""
    return ContextLength(spec, simulated=registry.capabilities(spec.engine).simulated).longest
