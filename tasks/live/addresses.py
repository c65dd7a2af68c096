"""Addresses of engines that answer live requests, published in Redis by the workers.

They may be lost or old: who finds nobody there says which model is wanted (`tasks.live.demand`), and they come again.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from batchyard.models import ModelSpec
from tasks import published
from tasks.context import AppContext

ADDRESSES = "batchyard:live:engines:"
FAILURES = "batchyard:live:failures:"
FAILURE_SECONDS = 5
"""A failed start is told to those who wait, and then tried again."""
KEPT_SECONDS = 3600


@dataclass(frozen=True)
class EngineAddress:
    """A replica that answers live requests, by the name of its actor, as known `at` a time in Unix seconds.

    `config_sha256` is that of the model's configuration that it runs.
    """

    name: str
    url: str
    token: str
    capacity: int
    at: float = 0.0
    config_sha256: str = ""

    def is_of(self, spec: ModelSpec) -> bool:
        """True if the replica has this configuration, or does not say which."""
        return self.config_sha256 in ("", spec.config_sha256)


def publish(context: AppContext, model: str, engines: Iterable[EngineAddress]) -> None:
    """Publish the replicas of a model. Raises redis.RedisError."""
    values = {engine.name: json.dumps({**asdict(engine), "at": time.time()}) for engine in engines}
    with context.redis.pipeline() as pipeline:
        pipeline.delete(FAILURES + model)
        published.replace(pipeline, ADDRESSES + model, values)
        pipeline.expire(ADDRESSES + model, KEPT_SECONDS)
        pipeline.execute()


def fail(context: AppContext, model: str, reason: str) -> None:
    """Publish why no engine of a model starts. Raises redis.RedisError."""
    context.redis.set(FAILURES + model, reason, ex=FAILURE_SECONDS)


def read(context: AppContext, model: str) -> tuple[list[EngineAddress], str | None]:
    """Return the replicas of a model, and why none started lately. Raises redis.RedisError."""
    with context.redis.pipeline(transaction=False) as pipeline:
        pipeline.hvals(ADDRESSES + model)
        pipeline.get(FAILURES + model)
        values, failure = pipeline.execute()
    return [EngineAddress(**json.loads(value)) for value in values], failure
