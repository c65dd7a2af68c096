"""Totals: what was counted in Redis by model for `/metrics`, and by minutes for the pages.

They begin again at 0 if Redis loses them.
"""

from __future__ import annotations

import bisect
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

import redis

from tasks.context import AppContext
from tasks.execution import minutes

log = logging.getLogger(__name__)

KEY = "batchyard:totals"
JUDGEMENT_ERRORS = "judgement_errors"
"""The one of the totals that is not by model, but by reward or gate."""
REQUEST_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Upper bounds of the buckets in which the seconds of requests are counted for /metrics."""


def count(context: AppContext, model: str, amounts: Mapping[str, int]) -> None:
    """Add to the model's totals for /metrics, which begin again at 0 if Redis loses them, and to this minute's."""
    try:
        with context.redis.pipeline(transaction=False) as pipeline:
            for name, amount in amounts.items():
                pipeline.hincrby(KEY, f"{name} {model}", amount)
            if recent := minutes.counted(amounts):
                minutes.add(pipeline, model, recent)
            pipeline.execute()
    except redis.RedisError as error:
        log.warning("totals not counted: %s", error)


def request_seconds(request_class: str, seconds: Sequence[float]) -> dict[str, int]:
    """Return the amounts that count requests of a class by their seconds in the engine.

    They are `seconds:<class>:<n>` for bucket n of REQUEST_SECONDS, the last one without a bound, and
    `milliseconds:<class>` for the sum.
    """
    if not seconds:
        return {}
    buckets = Counter(bisect.bisect_left(REQUEST_SECONDS, value) for value in seconds)
    amounts = {f"seconds:{request_class}:{bucket}": number for bucket, number in buckets.items()}
    return amounts | {f"milliseconds:{request_class}": round(1000 * sum(seconds))}


def read(context: AppContext) -> dict[tuple[str, str], int]:
    """Return the totals by (name, model). Raises redis.RedisError."""
    values = cast(dict[str, str], context.redis.hgetall(KEY))
    return {(name, model): int(amount) for key, amount in values.items() for name, _, model in [key.partition(" ")]}
