"""A variant of an experiment: its children of the last round, its metrics, and their differences from another's."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from recipes.experiment.values import ComparedChild, Measured
from recipes.measures import estimates as measures
from recipes.measures import paired
from recipes.measures.estimates import MetricEstimate
from recipes.measures.paired import Difference, Values

PERCENTILES = (50, 90, 95, 99)
NOT_METRICS = ("intervals", "data_sources")
"""Parts of metrics.json that are no metrics."""


@dataclass(frozen=True)
class Variant:
    """A variant."""

    name: str
    children: Sequence[ComparedChild]  # of the last round, those that completed
    measured: Sequence[Measured]  # what their files say, in the same order

    @cached_property
    def inputs(self) -> set[str]:
        """The hashes of the inputs of its children."""
        return {str(child.manifest["input_sha256"]) for child in self.children if child.manifest.get("input_sha256")}

    @cached_property
    def by_item(self) -> list[str]:
        """Names of the metrics that have a value for each item. Repeats over several inputs have none."""
        if len(self.inputs) > 1:
            return []
        return list(dict.fromkeys(name for measured in self.measured for name in measured.table.names))

    @property
    def left_out(self) -> list[str]:
        """Names of metrics whose values by item were too many to be read."""
        return list(dict.fromkeys(name for measured in self.measured for name in measured.table.left_out))

    def column(self, metric: str) -> Values:
        """Return a metric by item number, as the mean of its repeats. NaN is no value."""
        columns = [column for measured in self.measured if (column := measured.table.get(metric)) is not None]
        if len(columns) == 1:
            return columns[0]
        total, count = np.zeros((2, max((len(column) for column in columns), default=0)))
        for column in columns:
            there = np.isfinite(column)
            total[: len(column)][there] += column[there]
            count[: len(column)] += there
        total[count == 0] = np.nan
        mean: Values = total / np.maximum(count, 1)
        return mean

    @cached_property
    def as_a_whole(self) -> dict[str, float]:
        """Metrics without values by item: those of metrics.json, the mean of the repeats, and percentiles of seconds.

        Parts of a metric have its name before a slash, and a mean with its number the name alone.
        """
        values: dict[str, list[float]] = {}
        for child in self.children:
            for name, value in _flat(child.metrics):
                values.setdefault(name, []).append(value)
        metrics = {name: sum(each) / len(each) for name, each in values.items()}
        percentiles = self.latency or {}
        return metrics | {f"seconds/p{share}": percentiles[f"p{share}"] for share in PERCENTILES if percentiles}

    @cached_property
    def latency(self) -> dict[str, Any] | None:
        """Number, mean and percentiles of the seconds of its requests, None without any."""
        seconds = np.concatenate([measured.seconds for measured in self.measured] or [np.empty(0, np.float32)])
        if not len(seconds):
            return None
        values = np.percentile(seconds.astype(np.float64), PERCENTILES)
        named = {f"p{share}": float(value) for share, value in zip(PERCENTILES, values, strict=True)}
        return {"requests": len(seconds), "mean": float(seconds.mean(dtype=np.float64)), **named}

    @property
    def errors(self) -> dict[str, int]:
        """Requests that failed, by error code."""
        total = sum((measured.errors for measured in self.measured), Counter[str]())
        return dict(sorted(total.items()))


def estimates(variant: Variant, metrics: Sequence[str]) -> dict[str, MetricEstimate]:
    """Return the estimates of those metrics that have values."""
    columns = ((metric, variant.column(metric)) for metric in metrics)
    present = {metric: there for metric, column in columns if len(there := column[np.isfinite(column)])}
    return dict(zip(present, measures.estimates(list(present.values())), strict=True))


def is_paired(left: Variant, right: Variant) -> bool:
    """Return True if the items of both are rows of one input, as far as that is known."""
    return len(left.inputs | right.inputs) <= 1


def differences(sides: Sequence[tuple[Variant, str, Variant, str]]) -> list[Difference]:
    """Return the mean difference of two metrics of two variants, over the items that have both."""
    pairs = []
    for left, left_metric, right, right_metric in sides:
        columns = left.column(left_metric), right.column(right_metric)
        both = min(map(len, columns))
        there = np.isfinite(columns[0][:both]) & np.isfinite(columns[1][:both])
        pairs.append((columns[0][:both][there], columns[1][:both][there]))
    return paired.differences(pairs)


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if name in NOT_METRICS:
            continue
        if isinstance(value, Mapping):
            if "mean" in value and "n" in value:
                value = {**value, "": value["mean"]}
                del value["mean"], value["n"]
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{prefix}{name}".rstrip("/"), float(value)
