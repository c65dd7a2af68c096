"""Engine status: the resident engines and what they do, published by the processes that run segments.

Only these processes are connected to the Ray cluster. Nothing polls an idle engine, so its last status stands until it
must have stopped itself, or until a process on its machine sees that it is gone.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import redis

from batchyard.endpoints.base import AnswerForm
from batchyard.endpoints.catalog import CHAT
from batchyard.errors import Stopped
from batchyard.models import ModelSpec
from inference.engine import Capabilities
from inference.engines import registry
from inference.requests.context_length import ContextLength
from inference.residents import process
from inference.residents.session import EngineTimeouts
from inference.residents.status import EngineStatus as EngineStatus
from inference.residents.status import ResidentStatus
from tasks import published
from tasks.context import AppContext
from tasks.port import running_models
from tasks.scheduling.states import Engines

log = logging.getLogger(__name__)

ENGINES = "batchyard:engines"
STARTING = "batchyard:starting:"
CONCURRENCY = "batchyard:concurrency"
ANSWER_FORMS: Mapping[AnswerForm, Any] = {
    "json": {"type": "object"},
    "regex": "a",
    "choice": ["a"],
    "grammar": 'root ::= "a"',
}
"""What an engine may be able to hold an answer to, each with an example."""
LOGPROBS = {"logprobs": True, "top_logprobs": 20}
"""The parameters of a chat with the log-probabilities of its tokens; OpenAI allows no more alternatives."""
INTERVAL_SECONDS = 5.0
CONCURRENCY_SECONDS = 60
"""The counter of concurrency is gone after this long without a word of any segment."""


def timeouts(context: AppContext) -> EngineTimeouts:
    settings = context.settings
    return EngineTimeouts(
        request_timeout=float(settings.request_timeout),
        start_timeout=float(settings.engine_start_timeout),
        idle_seconds=float(settings.engine_idle_seconds),
    )


def publish(context: AppContext, engines: Mapping[str, ResidentStatus]) -> None:
    """Publish the states of engines, and the requests in flight by model for people (batchyard:concurrency)."""
    values = {name: engine.model_dump_json() for name, engine in engines.items()}
    in_flight: Counter[str] = Counter()
    for engine in engines.values():
        in_flight[engine.model] += engine.in_flight
    with published.warned(log, "engine states not published"), context.redis.pipeline() as pipeline:
        published.replace(pipeline, ENGINES, values)
        published.replace(pipeline, CONCURRENCY, {model: str(number) for model, number in in_flight.items()})
        pipeline.expire(CONCURRENCY, CONCURRENCY_SECONDS)
        pipeline.execute()


@contextmanager
def starting(context: AppContext, model: str) -> Iterator[bool]:
    """Publish that a model's engine is waited for in this block. Yield False if it was waited for already."""
    key, is_first = STARTING + model, True
    with published.warned(log, "start of an engine not published"):
        is_first = bool(context.redis.set(key, time.time(), nx=True, ex=context.settings.engine_start_timeout))
    try:
        yield is_first
    finally:
        with published.warned(log, "start of an engine not published"):
            context.redis.delete(key)


def read(context: AppContext) -> list[EngineStatus]:
    """Return the engines that are not known to be gone, nor must have stopped themselves. Raises redis.RedisError."""
    now = time.time()
    values = cast(dict[str, str], context.redis.hgetall(ENGINES))
    engines = [ResidentStatus.model_validate_json(value) for value in values.values()]
    stay = {name for name, spec in context.models.items() if spec.live.mode == "always"}
    limit = context.settings.engine_idle_seconds
    alive = [
        engine
        for engine in engines
        if (0.0 if engine.model in stay else engine.idle_seconds) + now - engine.seen_at <= limit
        and not process.is_gone(engine.process)
    ]
    return sorted(alive, key=lambda engine: engine.name)


def stop(context: AppContext, model: str) -> None:
    """Stop the engines of a derived model unless a job uses it. Call it where segments run."""
    from inference.residents import directory

    with context.database.read() as session:
        if model in running_models(context, session):
            return
    stopped = threading.Event()
    stopped.set()  # a cluster that is away is not waited for: who has sent the message sends it again
    try:
        context.join_ray(stopped)
    except Stopped:
        return
    names = directory.stop_all(model)
    log.info("engines of a derived model stopped", extra={"model": model, "engines": len(names)})
    publish(context, directory.states(timeout=1.0))


def known(context: AppContext) -> Engines | None:
    """Return which models have an engine, and which are starting one. Return None if Redis is away."""
    names = list(context.models)
    try:
        engines = read(context)
        values = cast(list[str | None], context.redis.mget([STARTING + name for name in names]))
    except redis.RedisError as error:
        log.warning("engine states not read: %s", error)
        return None
    starting = {name: float(at) for name, at in zip(names, values, strict=True) if at is not None}
    # What was seen before somebody began to wait for a start may be gone.
    there = (one.model for one in engines if one.state != "starting" and one.seen_at >= starting.get(one.model, 0.0))
    return Engines(frozenset(there), starting)


def capabilities(spec: ModelSpec) -> type[Capabilities]:
    """Return what the model's engine says of itself, without starting it."""
    return registry.capabilities(spec.engine)


def answer_forms(spec: ModelSpec) -> list[AnswerForm]:
    """Return the forms that the model's chats can follow, by OpenAI's parameter, or vLLM's.

    Remote servers may know OpenAI's alone.
    """
    forms = list[AnswerForm]()
    for form, example in ANSWER_FORMS.items():
        schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": example}}
        parameters = {"response_format": schema} if form == "json" else {"structured_outputs": {form: example}}
        known = form == "json" or not capabilities(spec).passes_on
        if known and capabilities(spec).structure(form, example) is not None and _takes(spec, parameters):
            forms.append(form)
    return forms


def tells_logprobs(spec: ModelSpec) -> bool:
    """Return whether the model's chats are known to have the log-probabilities of their tokens, where asked for."""
    return not capabilities(spec).passes_on and _takes(spec, LOGPROBS)


def _takes(spec: ModelSpec, parameters: Mapping[str, Any]) -> bool:
    """Return whether the model's engine knows these parameters of a chat."""
    return CHAT.path in spec.endpoints and capabilities(spec).unsupported(spec, CHAT.path, {**parameters}) is None


def context_length(spec: ModelSpec) -> int | None:
    """Return the most tokens of a prompt and its answer together. None if only the engine knows."""
    return ContextLength(spec, simulated=capabilities(spec).simulated).longest
