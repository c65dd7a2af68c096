"""Latency: how long requests were in an engine, as histograms by model and request class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

from batchyard import histogram
from batchyard.histogram import Histogram

Latencies = Mapping[str, Mapping[str, Histogram]]
"""Histograms of seconds by model, then request class (store.speeds)."""


class LatencyPercentiles(TypedDict):
    """Percentiles in seconds, and the number of measured requests."""

    requests: int
    p50: float
    p95: float
    p99: float


class ModelLatencySummary(LatencyPercentiles):
    """The same of one model, and of each request class."""

    classes: dict[str, LatencyPercentiles]


class LatencySummary(LatencyPercentiles):
    """The same of all requests, and of each model."""

    models: dict[str, ModelLatencySummary]


def merged(latencies: Iterable[Latencies]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the latencies of all."""
    total: dict[str, dict[str, dict[str, int]]] = {}
    for models in latencies:
        for model, classes in models.items():
            into = total.setdefault(model, {})
            for request_class, seconds in classes.items():
                into[request_class] = histogram.merged([into.get(request_class, {}), seconds])
    return total


def summary(latencies: Latencies | None) -> LatencySummary | None:
    """Return the percentiles of all requests, of each model and of each class. None if nothing was measured."""
    if not latencies:
        return None
    models: dict[str, ModelLatencySummary] = {}
    for model, of_model in latencies.items():
        classes = {name: _percentiles(seconds) for name, seconds in of_model.items()}
        models[model] = {**_joined(classes, of_model.values()), "classes": classes}
    return {
        **_joined(models, (seconds for of_model in latencies.values() for seconds in of_model.values())),
        "models": models,
    }


def _joined(parts: Mapping[str, LatencyPercentiles], histograms: Iterable[Histogram]) -> LatencyPercentiles:
    """Return the percentiles of all histograms, which are those of the only part if there is one."""
    if len(parts) > 1:
        return _percentiles(histogram.merged(histograms))
    (only,) = parts.values()
    return {"requests": only["requests"], "p50": only["p50"], "p95": only["p95"], "p99": only["p99"]}


def _percentiles(seconds: Histogram) -> LatencyPercentiles:
    p50, p95, p99 = histogram.quantiles(seconds, (0.5, 0.95, 0.99))
    return {"requests": histogram.count(seconds), "p50": p50, "p95": p95, "p99": p99}
