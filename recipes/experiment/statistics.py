"""Estimates of a variant's metrics, and of their differences from another's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recipes.experiment.variants import Variant
from recipes.measures import intervals, paired
from recipes.measures.paired import Difference, Values

LEVEL = 0.05


@dataclass(frozen=True)
class MetricEstimate:
    """The mean of a metric over items with its 95 % interval: Wilson's for values of 0 and 1."""

    n: int
    mean: float
    interval: tuple[float, float] | None


def estimates(variant: Variant, metrics: Sequence[str]) -> dict[str, MetricEstimate]:
    """Return the estimates of those metrics that have values."""
    columns = {metric: _there(variant.column(metric)) for metric in metrics}
    drawn = [metric for metric, column in columns.items() if _is_drawn(column)]
    ends = dict(zip(drawn, intervals.draws([columns[metric] for metric in drawn]), strict=True))
    return {
        metric: MetricEstimate(
            len(column),
            float(column.mean()),
            intervals.of_draws(ends[metric], len(column)) if metric in ends else _interval(column),
        )
        for metric, column in columns.items()
        if len(column)
    }


def _there(column: Values) -> Values:
    there: Values = column[np.isfinite(column)]
    return there


def _is_drawn(column: Values) -> bool:
    return paired.drawn(len(column)) and not paired.is_binary(column)


def _interval(column: Values) -> tuple[float, float] | None:
    if paired.is_binary(column):
        return intervals.wilson(int(column.sum()), len(column))
    if len(column) < intervals.FEWEST:
        return None
    return intervals.normal(float(column.mean()), float(column.var()), len(column))


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


def side(interval: tuple[float, float] | None, p: float | None = None) -> int:
    """Return 1 or -1 if the difference is significant (interval and p), else 0."""
    if interval is None or (p is not None and p >= LEVEL):
        return 0
    return (interval[0] > 0) - (interval[1] < 0)


def adjusted(differences: Mapping[str, Difference]) -> dict[str, float]:
    """Return p adjusted by Holm's method, by the names of those that have one."""
    values = {name: difference.p for name, difference in differences.items() if difference.p is not None}
    return dict(zip(values, paired.holm(list(values.values())), strict=True))
