"""Totals: what was counted in Redis by model for `/metrics`, and by minutes of the last hour for the pages."""

import bisect
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from redis.client import Pipeline

from tasks.context import AppContext
from tasks.published import warned

log = logging.getLogger(__name__)

KEY = "batchyard:totals"
JUDGEMENT_ERRORS = "judgement_errors"
"""The one of the totals that is not by model, but by reward or gate."""
REQUEST_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Upper bounds of the buckets in which the seconds of requests are counted for /metrics."""
MINUTES = "batchyard:minutes:"
HOUR = 60
NAMES = frozenset(("completed", "failed", "output_tokens", "live_requests", "live_failed", "live_tokens", "live_ms"))
"""Those of the totals that are counted by minutes, too; live ones by tier, after a colon."""

Amounts = dict[tuple[str, str], int]
"""Amounts by name and model."""


def count(context: AppContext, model: str, amounts: Mapping[str, int]) -> None:
    """Add to the model's totals for /metrics, which begin again at 0 if Redis loses them, and to this minute's."""
    with warned(log, "totals not counted"), context.redis.pipeline(transaction=False) as pipeline:
        for name, amount in amounts.items():
            pipeline.hincrby(KEY, f"{name} {model}", amount)
        if recent := {name: number for name, number in amounts.items() if number and name.split(":")[0] in NAMES}:
            count_minute(pipeline, model, recent)
        pipeline.execute()


def request_seconds(request_class: str, seconds: Sequence[float]) -> dict[str, int]:
    """Return the amounts that count requests of a class by their seconds in the engine.

    They are `seconds:<class>:<n>` for bucket n of REQUEST_SECONDS, the last one without a bound, and
    `seconds_ms:<class>` for the sum.
    """
    if not seconds:
        return {}
    buckets = Counter(bisect.bisect_left(REQUEST_SECONDS, value) for value in seconds)
    amounts = {f"seconds:{request_class}:{bucket}": number for bucket, number in buckets.items()}
    return amounts | {f"seconds_ms:{request_class}": round(1000 * sum(seconds))}


def read(context: AppContext) -> Amounts:
    """Return the totals by (name, model). Raises redis.RedisError."""
    return _amounts(cast(dict[str, str], context.redis.hgetall(KEY)))


def count_minute(pipeline: Pipeline, model: str, amounts: Mapping[str, int], key: str = MINUTES) -> None:
    """Let the pipeline add amounts to those of this minute."""
    minute = f"{key}{int(time.time() // 60)}"
    for name, amount in amounts.items():
        pipeline.hincrby(minute, f"{name} {model}", amount)
    pipeline.expire(minute, 60 * (HOUR + 2))


def by_minute(context: AppContext, minutes: Sequence[int], key: str = MINUTES) -> dict[int, Amounts]:
    """Return the amounts of minutes since the epoch. Raises redis.RedisError."""
    with context.redis.pipeline(transaction=False) as pipeline:
        for minute in minutes:
            pipeline.hgetall(f"{key}{minute}")
        values = cast(list[dict[str, str]], pipeline.execute())
    return dict(zip(minutes, map(_amounts, values), strict=True))


def of_minutes(context: AppContext, minutes: Sequence[int], key: str = MINUTES) -> Amounts:
    """Return the sums over these minutes. Raises redis.RedisError."""
    total: Counter[tuple[str, str]] = Counter()
    for amounts in by_minute(context, minutes, key).values():
        total.update(amounts)
    return total


def _amounts(values: Mapping[str, str]) -> Amounts:
    return {(name, model): int(amount) for key, amount in values.items() for name, _, model in [key.partition(" ")]}
