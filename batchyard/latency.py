"""Latency: how long requests were in an engine, as histograms by model and request class."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, Field

from batchyard.comparing import histogram
from batchyard.comparing.histogram import Histogram

Latencies = Mapping[str, Mapping[str, Histogram]]
"""Histograms of seconds by model, then request class (store.speeds)."""


class Percentiles(BaseModel):
    """How long requests were in an engine, in seconds, to 2 %. `p50`: the median."""

    requests: int = Field(description="how many were measured: those that an engine has answered")
    p50: float
    p95: float
    p99: float


class ModelLatency(Percentiles):
    """The percentiles of one model's requests."""

    classes: dict[str, Percentiles] = Field(
        description="by class: `prefill`, whose work is mostly reading, and `decode`, mostly writing"
    )


class Latency(Percentiles):
    """The percentiles of all requests of a batch."""

    models: dict[str, ModelLatency]


def merged(latencies: Iterable[Latencies]) -> dict[str, dict[str, dict[str, int]]]:
    total: dict[str, dict[str, dict[str, int]]] = {}
    for models in latencies:
        for model, classes in models.items():
            into = total.setdefault(model, {})
            for request_class, seconds in classes.items():
                into[request_class] = histogram.merged([into.get(request_class, {}), seconds])
    return total


def summary(latencies: Latencies | None) -> Latency | None:
    """Return the percentiles of all requests, of each model and of each class. None if nothing was measured."""
    if not latencies:
        return None
    models = {}
    for model, histograms in latencies.items():
        classes = {name: Percentiles(**_percentiles(seconds)) for name, seconds in histograms.items()}
        models[model] = ModelLatency(**_joined(classes, histograms.values()), classes=classes)
    everything = (seconds for histograms in latencies.values() for seconds in histograms.values())
    return Latency(**_joined(models, everything), models=models)


def _joined(parts: Mapping[str, Percentiles], histograms: Iterable[Histogram]) -> dict[str, Any]:
    """Return the percentiles of all histograms, which are those of the only part if there is one."""
    if len(parts) > 1:
        return _percentiles(histogram.merged(histograms))
    (only,) = parts.values()
    return {name: getattr(only, name) for name in Percentiles.model_fields}


def _percentiles(seconds: Histogram) -> dict[str, Any]:
    p50, p95, p99 = histogram.quantiles(seconds, (0.5, 0.95, 0.99))
    return {"requests": histogram.count(seconds), "p50": p50, "p95": p95, "p99": p99}
