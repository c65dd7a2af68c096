"""Published hashes: what one task computes for all, in Redis, where it may be lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import redis
from redis.client import Pipeline

from tasks.context import AppContext

log = logging.getLogger(__name__)


def replace(pipeline: Pipeline, key: str, values: Mapping[str, str]) -> None:
    """Let the pipeline replace the whole hash."""
    pipeline.delete(key)
    if values:
        pipeline.hset(key, mapping=cast(dict[Any, Any], values))


def read(context: AppContext, key: str, fields: Sequence[str], what: str) -> dict[str, str]:
    """Return those of the fields that are there; none, with a log entry, if Redis is away."""
    if not fields:
        return {}
    try:
        values = cast(list[str | None], context.redis.hmget(key, list(fields)))
    except redis.RedisError as error:
        log.warning("%s not read: %s", what, error)
        return {}
    return {field: value for field, value in zip(fields, values, strict=True) if value}
