"""Means with their 95 % intervals, of questions or of clusters of questions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from recipes.measures import intervals, paired
from recipes.measures.paired import Values

Clusters: TypeAlias = NDArray[np.int64]
"""The cluster of each value, a number from 0."""


@dataclass(frozen=True)
class MetricEstimate:
    """The mean of a metric over items with its 95 % interval: Wilson's for values of 0 and 1."""

    n: int
    mean: float
    interval: tuple[float, float] | None

    def document(self) -> dict[str, Any]:
        return intervals.document(self.mean, self.n, self.interval)


@dataclass(frozen=True)
class _Drawn:
    """What an interval is drawn from: the sum and the number of the values of each cluster."""

    sums: Values
    sizes: Values

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.sizes.sum())

    @property
    def normal_interval(self) -> tuple[float, float]:
        """The interval of a ratio of means by linearisation (Cochran 1977, Sampling Techniques, 6.4)."""
        residuals = (self.sums - self.mean * self.sizes) / self.sizes.mean()
        return intervals.normal(self.mean, float(residuals.var()), len(self.sums))


def estimates(columns: Sequence[Values], clusters: Clusters | None = None) -> list[MetricEstimate]:
    """Return the estimate of each column, whose values are finite.

    The interval is that of a bootstrap of values. With clusters, which are of one length with every column, whole
    clusters are drawn, since the questions of one are answered alike (E. Miller, Adding Error Bars to Evals, 2024).
    Above `intervals.MOST_DRAWN` it is the normal one; fewer than `intervals.FEWEST` have none.
    """
    drawn = [_of(column, clusters) for column in columns]
    sampled = [each for each in drawn if each is not None and paired.drawn(len(each.sums))]
    tables = intervals.draws([*(each.sums for each in sampled), *(each.sizes for each in sampled)])
    sums, sizes = tables[: len(sampled)], tables[len(sampled) :]
    ends = (
        intervals.of_draws(total / size, len(each.sums)) for each, total, size in zip(sampled, sums, sizes, strict=True)
    )
    return [_estimate(column, each, clusters, ends) for column, each in zip(columns, drawn, strict=True)]


def _of(column: Values, clusters: Clusters | None) -> _Drawn | None:
    """Return what the interval of a column is drawn from; None if it is Wilson's, or there is none."""
    if clusters is None:
        return None if paired.is_binary(column) else _Drawn(column, np.ones(len(column)))
    if len(column) == 0 or bool(np.all(column == 0)) or bool(np.all(column == 1)):
        return None
    sizes = np.bincount(clusters).astype(np.float64)
    there = sizes > 0
    return _Drawn(np.bincount(clusters, column).astype(np.float64)[there], sizes[there])


def _estimate(
    column: Values, drawn: _Drawn | None, clusters: Clusters | None, ends: Iterator[tuple[float, float]]
) -> MetricEstimate:
    n = len(column)
    mean = float(column.mean()) if n else 0.0
    if drawn is None:  # all clusters are right, or all are wrong, so each counts as one question
        count = n if clusters is None else len(np.unique(clusters))
        return MetricEstimate(n, mean, intervals.wilson(round(mean * count), count) if n else None)
    if len(drawn.sums) < intervals.FEWEST:
        return MetricEstimate(n, mean, None)
    return MetricEstimate(n, mean, next(ends) if paired.drawn(len(drawn.sums)) else drawn.normal_interval)
