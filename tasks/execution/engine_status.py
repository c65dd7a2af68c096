"""Engine status: the resident engines and what they do, published by the processes that run segments.

Only these processes are connected to the Ray cluster. Nothing polls an idle engine, so its last status stands until it
must have stopped itself, or until a process on its machine sees that it is gone.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast

import redis

from batchyard.errors import Stopped
from batchyard.models import ModelSpec
from inference.engine import Capabilities
from inference.engines import registry
from inference.requests.context_length import ContextLength
from inference.residents import process
from tasks import derived, published
from tasks.context import AppContext
from tasks.scheduling.states import Engines

log = logging.getLogger(__name__)

ENGINES = "batchyard:engines"
STARTING = "batchyard:starting:"
CONCURRENCY = "batchyard:concurrency"
INTERVAL_SECONDS = 5.0
CONCURRENCY_SECONDS = 60
"""The counter of concurrency is gone after this long without a word of any segment."""

State = Literal["starting", "busy", "idle"]


@dataclass(frozen=True)
class EngineState:
    """One resident engine.

    Attributes:
        answered, in_flight: numbers of requests.
        idle_seconds: time without a request, as of `seen_at`.
        seen_at: when this was its state, in Unix seconds.
        preemptions: how often it took the cache of a running request and computed it again; None if it does not count.
        endpoints: the servers elsewhere it sends requests to, see `inference.engine.Engine.endpoints`.
        process: see `inference.residents.process.identity`.
        started_at: since when it is up, in Unix seconds; None before, and of engines that earlier versions started.
        start_seconds: how long its start took.
        capacity: requests that it runs at once.
        memory_bytes, peak_memory_bytes: resident memory of its processes, now and the most that was seen.
        peak_gpu_memory_bytes: the most that its GPUs were seen to hold.
        gpus, gpu_ids: how many it has, and which of its node.
        cache_use, prefix_tokens, prefix_hits: see `inference.engine.Engine`.
    """

    name: str
    model: str
    state: State
    answered: int
    in_flight: int
    idle_seconds: float
    seen_at: float
    endpoints: list[dict[str, Any]] = field(default_factory=list)
    preemptions: int | None = None
    process: dict[str, Any] = field(default_factory=dict)
    started_at: float | None = None
    start_seconds: float | None = None
    capacity: int | None = None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    peak_gpu_memory_bytes: int | None = None
    gpus: float = 0
    gpu_ids: list[str] = field(default_factory=list)
    cache_use: float | None = None
    prefix_tokens: int | None = None
    prefix_hits: int | None = None


_SAME = [entry.name for entry in fields(EngineState)][7:]
"""The fields with a default: what a resident says under the same name."""


def publish(context: AppContext, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Publish the result of `inference.residents.directory.states`. An engine that has not answered is starting.

    The hash `batchyard:concurrency` has the requests in flight by model, for people who look there.
    """
    now = time.time()
    values: dict[str, str] = {}
    in_flight: Counter[str] = Counter()
    for name, status in states.items():
        state: State = "starting" if "in_flight" not in status else "busy" if status["in_flight"] else "idle"
        numbers = (status.get("requests", 0), status.get("in_flight", 0), status.get("idle_seconds", 0.0))
        same = {key: status[key] for key in _SAME if key in status}
        in_flight[status["model"]] += status.get("in_flight", 0)
        values[name] = json.dumps(asdict(EngineState(name, status["model"], state, *numbers, now, **same)))
    try:
        with context.redis.pipeline() as pipeline:
            published.replace(pipeline, ENGINES, values)
            published.replace(pipeline, CONCURRENCY, {model: str(number) for model, number in in_flight.items()})
            pipeline.expire(CONCURRENCY, CONCURRENCY_SECONDS)
            pipeline.execute()
    except redis.RedisError as error:
        log.warning("engine states not published: %s", error)


@contextmanager
def starting(context: AppContext, model: str) -> Iterator[None]:
    """Publish that a segment waits for the engine of this model, until the end of this block."""
    key = STARTING + model
    try:
        context.redis.set(key, time.time(), nx=True, ex=context.settings.engine_start_timeout)
    except redis.RedisError as error:
        log.warning("start of an engine not published: %s", error)
    try:
        yield
    finally:
        try:
            context.redis.delete(key)
        except redis.RedisError as error:
            log.warning("start of an engine not published: %s", error)


def read(context: AppContext) -> list[EngineState]:
    """Return the engines that are not known to be gone, nor must have stopped themselves. Raises redis.RedisError."""
    now = time.time()
    values = cast(dict[str, str], context.redis.hgetall(ENGINES))
    engines = [EngineState(**json.loads(value)) for value in values.values()]
    limit = context.settings.engine_idle_seconds
    alive = [
        engine
        for engine in engines
        if engine.idle_seconds + now - engine.seen_at <= limit and not process.is_gone(engine.process)
    ]
    return sorted(alive, key=lambda engine: engine.name)


def stop(context: AppContext, model: str) -> None:
    """Stop the engines of a derived model, in a process that runs segments, unless a job is still on that model."""
    from inference.ray import cluster
    from inference.residents import directory

    with context.database.read() as session:
        if model in derived.running(context, session):
            return
    stopped = threading.Event()
    stopped.set()  # a cluster that is away is not waited for: who has sent the message sends it again
    try:
        cluster.connect(context.settings.ray_address, stopped)
    except Stopped:
        return
    names = directory.stop_all(model)
    log.info("engines of a derived model stopped", extra={"model": model, "engines": len(names)})
    publish(context, directory.states(timeout=1.0))


def known(context: AppContext) -> Engines | None:
    """Return which models have an engine, and which are starting one. Return None if Redis is away."""
    names = list(context.models)
    try:
        models = frozenset(engine.model for engine in read(context) if engine.state != "starting")
        values = cast(list[str | None], context.redis.mget([STARTING + name for name in names]))
    except redis.RedisError as error:
        log.warning("engine states not read: %s", error)
        return None
    return Engines(models, {name: float(at) for name, at in zip(names, values, strict=True) if at is not None})


def capabilities(spec: ModelSpec) -> type[Capabilities]:
    """Return what the model's engine says of itself, without starting it."""
    return registry.capabilities(spec.engine)


def context_length(spec: ModelSpec) -> int | None:
    """Return the most tokens of a prompt and its answer together. None if only the engine knows."""
    return ContextLength(spec, simulated=capabilities(spec).simulated).longest
