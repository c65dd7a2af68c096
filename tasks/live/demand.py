"""Demand: which models answer live requests, and which of them are waited for: workers read these in Redis."""

import time
from collections.abc import Iterator
from typing import cast

from redis.client import PubSub

from batchyard.models import ModelSpec
from inference.engines.registry import capabilities
from tasks.context import AppContext

WANTED = "batchyard:live:wanted"
SUSPECTS = "batchyard:live:suspects"
CHANNEL = "batchyard:live"
SECONDS = 30.0
"""A model is wanted for this long after it was said last."""


def answers_live(spec: ModelSpec) -> bool:
    return spec.live.mode != "off" and not capabilities(spec.engine).starts_each_run


def want(context: AppContext, model: str) -> None:
    """Say that live requests want the model's engines. Raises redis.RedisError."""
    with context.redis.pipeline(transaction=False) as pipeline:
        pipeline.hset(WANTED, model, str(time.time()))
        pipeline.publish(CHANNEL, model)
        pipeline.execute()


def wanted(context: AppContext) -> set[str]:
    """Return the models that are wanted. Raises redis.RedisError."""
    values = cast(dict[str, str], context.redis.hgetall(WANTED))
    since = time.time() - SECONDS
    return {model for model, at in values.items() if float(at) >= since}


def suspect(context: AppContext, model: str, engine: str) -> None:
    """Say that an engine of this name seems to hang. Raises redis.RedisError."""
    with context.redis.pipeline(transaction=False) as pipeline:
        pipeline.sadd(SUSPECTS, f"{model}\0{engine}")
        pipeline.expire(SUSPECTS, round(SECONDS))
        pipeline.publish(CHANNEL, model)
        pipeline.execute()


def suspects(context: AppContext) -> list[tuple[str, str]]:
    """Return the engines that seem to hang, each once, by model and name. Raises redis.RedisError."""
    with context.redis.pipeline() as pipeline:
        pipeline.smembers(SUSPECTS)
        pipeline.delete(SUSPECTS)
        members, _ = pipeline.execute()
    return [(model, engine) for model, _, engine in (member.partition("\0") for member in members)]


def heard(context: AppContext, seconds: float) -> Iterator[None]:
    """Yield whenever a model is wanted, and at least every `seconds`. Raises redis.RedisError."""
    with cast(PubSub, context.redis.pubsub(ignore_subscribe_messages=True)) as messages:  # type: ignore[no-untyped-call]
        messages.subscribe(CHANNEL)
        messages.get_message(timeout=seconds)  # confirms the subscription, so that none is missed
        while True:
            yield
            messages.get_message(timeout=seconds)
