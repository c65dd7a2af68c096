"""Minutes: what was counted of each model in each minute of the last hour, in Redis, where it may be lost."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import cast

from redis.client import Pipeline

from tasks.context import AppContext

MINUTES = "batchyard:minutes:"
HOUR = 60
NAMES = frozenset(("completed", "failed", "output_tokens", "live_requests", "live_failed", "live_tokens", "live_ms"))
"""Those of the totals (tasks.execution.tally) that are counted by minutes, too; live ones by tier, after a colon."""

Amounts = Mapping[tuple[str, str], int]
"""Amounts by name and model."""


def add(pipeline: Pipeline, model: str, amounts: Mapping[str, int], key: str = MINUTES) -> None:
    """Let the pipeline add amounts to those of this minute."""
    minute = f"{key}{int(time.time() // 60)}"
    for name, amount in amounts.items():
        pipeline.hincrby(minute, f"{name} {model}", amount)
    pipeline.expire(minute, 60 * (HOUR + 2))


def counted(amounts: Mapping[str, int]) -> dict[str, int]:
    """Return those of the amounts that are counted by minutes, without zeros."""
    return {name: amount for name, amount in amounts.items() if amount and name.partition(":")[0] in NAMES}


def read(context: AppContext, minutes: Sequence[int], key: str = MINUTES) -> dict[int, Amounts]:
    """Return the amounts of minutes since the epoch. Raises redis.RedisError."""
    with context.redis.pipeline(transaction=False) as pipeline:
        for minute in minutes:
            pipeline.hgetall(f"{key}{minute}")
        values = cast(list[dict[str, str]], pipeline.execute())
    return {minute: _by_name_and_model(amounts) for minute, amounts in zip(minutes, values, strict=True)}


def summed(amounts: Mapping[int, Amounts]) -> dict[tuple[str, str], int]:
    """Return the sums over all minutes."""
    total: defaultdict[tuple[str, str], int] = defaultdict(int)
    for minute in amounts.values():
        for key, amount in minute.items():
            total[key] += amount
    return dict(total)


def _by_name_and_model(values: Mapping[str, str]) -> Amounts:
    return {(name, model): int(amount) for key, amount in values.items() for name, _, model in [key.partition(" ")]}
