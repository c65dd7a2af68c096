"""Traffic of live requests, counted in Redis by model and tier: totals for /metrics, and the last hour by minutes."""

from __future__ import annotations

import bisect
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import redis
from pydantic import BaseModel, Field

from batchyard.comparing import histogram
from batchyard.endpoints.live_wire import TIERS, Tier
from tasks.context import AppContext
from tasks.execution import engine_status, tally
from tasks.execution.engine_status import EngineStatus
from tasks.published import warned

log = logging.getLogger(__name__)

Kind = Literal["first", "queue", "gap"]
"""A time of live requests: to the first token, in the queue, and between two pieces of a stream."""
_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
BOUNDS: Mapping[Kind, Sequence[float]] = {
    "first": _SECONDS,
    "queue": _SECONDS,
    "gap": (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
}
HISTOGRAMS = "batchyard:live:seconds:"
RATE_MINUTES = 1
"""Rates are those of so many whole minutes and of the one that has begun."""
QUANTILE_MINUTES = 5
"""Quantiles, likewise."""


@dataclass
class Counts:
    totals: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        tier: Tier,
        *,
        failed: bool,
        output_tokens: int,
        milliseconds: int,
        seconds: Mapping[Kind, Sequence[float]],
    ) -> None:
        """Add a request. `milliseconds`: its share of the engine's time."""
        self.totals[f"live_requests:{tier}"] += 1
        self.totals[f"live_failed:{tier}"] += failed
        self.totals[f"live_tokens:{tier}"] += output_tokens
        self.totals[f"live_ms:{tier}"] += milliseconds
        for kind, values in seconds.items():
            for value in values:
                self.totals[f"live_{kind}:{tier}:{bisect.bisect_left(BOUNDS[kind], value)}"] += 1
            self.totals[f"live_{kind}_us:{tier}"] += round(1e6 * sum(values))
            for bucket, number in histogram.of(values).items():
                self.seconds[f"{kind}:{tier}:{bucket}"] += number

    def merge(self, other: Counts) -> None:
        self.totals.update(other.totals)
        self.seconds.update(other.seconds)


def count(context: AppContext, model: str, counts: Counts) -> None:
    if counts.totals:
        tally.count(context, model, counts.totals)
    if counts.seconds:
        failure = "times of live requests not counted"
        with warned(log, failure), context.redis.pipeline(transaction=False) as pipeline:
            tally.count_minute(pipeline, model, counts.seconds, HISTOGRAMS)
            pipeline.execute()


class Quantiles(BaseModel):
    """How long something took, in seconds, to 2 %. `p50`: the median."""

    p50: float
    p99: float


class TierTraffic(BaseModel):
    """Live requests of one service tier; rates are over the last one to two minutes, times over the last five."""

    requests_per_second: float
    failed_per_second: float
    output_tokens_per_second: float
    ttft_seconds: Quantiles | None = Field(
        description="from a request's arrival to its first token, of those that are streamed; null: there were none"
    )
    itl_seconds: Quantiles | None = Field(description="between two pieces of a stream")
    queue_seconds: Quantiles | None = Field(description="before it entered the engine")


class LiveTraffic(BaseModel):
    """Live requests of one model, of all projects, beside those of batches."""

    model: str
    in_flight: int = Field(description="in its engines, as these were seen last")
    waiting: int = Field(description="those that wait to enter one")
    batch_limit: int | None = Field(
        description="requests of batches that its engines may hold now, beside live ones; null: no engine is up"
    )
    redone_requests: int = Field(
        description="requests of batches that have lost their place to live ones and run again, in the engines that "
        "are up"
    )
    redone_tokens: int = Field(description="tokens that were computed of them before that")
    time_share: float = Field(
        description="share of its engines' time that live requests had, over the last one to two minutes, 0 to 1"
    )
    tiers: dict[Tier, TierTraffic]


def recent(context: AppContext, engines: Sequence[EngineStatus]) -> list[LiveTraffic]:
    """Return the live traffic of each model that has any, or whose engines had some. Raises redis.RedisError."""
    now = time.time()
    rates = tally.of_minutes(context, _last(RATE_MINUTES, now))
    times = tally.of_minutes(context, _last(QUANTILE_MINUTES, now), HISTOGRAMS)
    elapsed = 60.0 * RATE_MINUTES + now % 60
    histograms: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for (name, model), number in times.items():
        kind, tier, bucket = name.split(":")
        histograms[model, f"{kind}:{tier}"][bucket] = number
    with_traffic = {model for name, model in rates if name.startswith("live_")} | {model for model, _ in histograms}
    had_some = {engine.model for engine in engines if engine.live_answered or engine.live_waiting}
    return [
        LiveTraffic(
            **_of_engines([engine for engine in engines if engine.model == model]),
            model=model,
            time_share=_time_share(rates, model, elapsed, engines),
            tiers={
                tier: TierTraffic(
                    requests_per_second=rates.get((f"live_requests:{tier}", model), 0) / elapsed,
                    failed_per_second=rates.get((f"live_failed:{tier}", model), 0) / elapsed,
                    output_tokens_per_second=rates.get((f"live_tokens:{tier}", model), 0) / elapsed,
                    ttft_seconds=_quantiles(histograms.get((model, f"first:{tier}"))),
                    itl_seconds=_quantiles(histograms.get((model, f"gap:{tier}"))),
                    queue_seconds=_quantiles(histograms.get((model, f"queue:{tier}"))),
                )
                for tier in TIERS
                if (f"live_requests:{tier}", model) in rates or (model, f"queue:{tier}") in histograms
            },
        )
        for model in sorted(with_traffic | had_some)
    ]


def time_shares(context: AppContext) -> dict[str, float]:
    """Return the share of its engines' time that live requests take of each model. Empty if Redis is away."""
    now = time.time()
    try:
        rates, engines = tally.of_minutes(context, _last(RATE_MINUTES, now)), engine_status.read(context)
    except redis.RedisError as error:
        log.warning("live traffic not read: %s", error)
        return {}
    elapsed = 60.0 * RATE_MINUTES + now % 60
    models = {model for name, model in rates if name.startswith("live_ms:")}
    return {model: _time_share(rates, model, elapsed, engines) for model in models}


class Minute(NamedTuple):
    """Output tokens a second of one model in one minute, which ended `minutes_ago`."""

    minutes_ago: int
    live: float
    batch: float


def history(context: AppContext) -> dict[str, list[Minute]]:
    """Return the last hour's whole minutes of each model, the oldest first. Raises redis.RedisError."""
    current = int(time.time() // 60)
    numbers = range(current - tally.HOUR, current)
    by_minute = tally.by_minute(context, numbers)
    models = {model for amounts in by_minute.values() for _, model in amounts}
    return {
        model: [
            Minute(
                current - number - 1,
                sum(by_minute[number].get((f"live_tokens:{tier}", model), 0) for tier in TIERS) / 60,
                by_minute[number].get(("output_tokens", model), 0) / 60,
            )
            for number in numbers
        ]
        for model in models
    }


def _last(whole: int, now: float) -> range:
    current = int(now // 60)
    return range(current - whole, current + 1)


def _of_engines(engines: Sequence[EngineStatus]) -> dict[str, int | None]:
    """Return what a model's engines say of live requests, together."""
    limits = [engine.batch_limit for engine in engines if engine.batch_limit is not None]
    return {
        "in_flight": sum(engine.live_in_flight for engine in engines),
        "waiting": sum(engine.live_waiting for engine in engines),
        "batch_limit": sum(limits) if limits else None,
        "redone_requests": sum(engine.redone_requests for engine in engines),
        "redone_tokens": sum(engine.redone_input_tokens + engine.redone_output_tokens for engine in engines),
    }


def _time_share(
    rates: Mapping[tuple[str, str], int], model: str, elapsed: float, engines: Sequence[EngineStatus]
) -> float:
    milliseconds = sum(rates.get((f"live_ms:{tier}", model), 0) for tier in TIERS)
    replicas = sum(engine.model == model and engine.state != "starting" for engine in engines)
    return min(1.0, milliseconds / (1000 * elapsed * max(1, replicas)))


def _quantiles(seconds: Mapping[str, int] | None) -> Quantiles | None:
    if not seconds:
        return None
    p50, p99 = histogram.quantiles(seconds, (0.5, 0.99))
    return Quantiles(p50=p50, p99=p99)
