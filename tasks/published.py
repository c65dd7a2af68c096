"""What tasks publish in Redis, where it may be lost: hashes that one computes for all, and failures to write."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import redis
from redis.client import Pipeline

from tasks.context import AppContext

log = logging.getLogger(__name__)


@contextmanager
def warned(log: logging.Logger, message: str, **ids: object) -> Iterator[None]:
    """Log a warning instead of a RedisError in the block, which then ends."""
    try:
        yield
    except redis.RedisError as error:
        log.warning("%s: %s", message, error, extra=ids)


def replace(pipeline: Pipeline, key: str, values: Mapping[str, str]) -> None:
    pipeline.delete(key)
    if values:
        pipeline.hset(key, mapping=cast(dict[Any, Any], values))


def read(context: AppContext, key: str, fields: Sequence[str], what: str) -> dict[str, str]:
    """Return those of the fields that are there; none, with a log entry, if Redis is away."""
    if not fields:
        return {}
    values: list[str | None] = [None] * len(fields)
    with warned(log, f"{what} not read"):
        values = cast(list[str | None], context.redis.hmget(key, list(fields)))
    return {field: value for field, value in zip(fields, values, strict=True) if value}
