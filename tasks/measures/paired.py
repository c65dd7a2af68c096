"""Paired comparisons: whether the mean of differences can be told from 0, and Holm's correction for several of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, exp, lgamma, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tasks.measures import intervals

Values = NDArray[np.float64]
EXACT = 10_000
"""Most differing pairs whose binomial coefficients are whole numbers. For more they come from logarithms."""


@dataclass(frozen=True)
class Difference:
    """A mean difference of pairs.

    Attributes:
        n: pairs.
        interval: of 95 %; None of fewer than `intervals.FEWEST` pairs.
        p: two-sided, of "the mean is 0"; None without an interval.
    """

    n: int
    mean: float
    interval: tuple[float, float] | None
    p: float | None
    test: Literal["mcnemar", "bootstrap", "normal"]


def differences(pairs: Sequence[tuple[Values, Values]]) -> list[Difference]:
    """Return the mean of `left - right` of each pair of columns.

    The interval and p are those of one bootstrap of the pairs, the normal ones above `intervals.MOST_DRAWN`. Where all
    values are 0 or 1, p is that of McNemar's exact test. Without it, p is not below the least of a sign test: draws of
    few pairs that differ say more than these pairs do.

    Args:
        pairs: columns without gaps, two of one length.
    """
    columns = [left - right for left, right in pairs]
    draws = iter(intervals.draws([column for column in columns if drawn(len(column))]))
    return [
        _difference(left, right, column, next(draws) if drawn(len(column)) else None)
        for (left, right), column in zip(pairs, columns, strict=True)
    ]


def drawn(count: int) -> bool:
    """Return True if the interval of a mean of so many values is that of draws."""
    return intervals.FEWEST <= count <= intervals.MOST_DRAWN


def _difference(left: Values, right: Values, column: Values, means: Values | None) -> Difference:
    n = len(column)
    mean = float(column.mean()) if n else 0.0
    mcnemars = is_binary(left) and is_binary(right)
    if n < intervals.FEWEST:
        return Difference(n, mean, None, None, "mcnemar" if mcnemars else "bootstrap")
    if means is not None:
        interval, p = intervals.of_draws(means), _p_of_draws(means)
    else:
        interval, p = intervals.normal(mean, float(column.var()), n), _p_of_normal(mean, float(column.var()), n)
    if mcnemars:
        return Difference(n, mean, interval, mcnemar(int((column > 0).sum()), int((column < 0).sum())), "mcnemar")
    p = max(p, min(1.0, 2.0 ** (1 - int(np.count_nonzero(column)))))
    return Difference(n, mean, interval, p, "bootstrap" if means is not None else "normal")


def is_binary(values: Values) -> bool:
    """Return True if all values are 0 or 1."""
    return bool(np.all((values == 0) | (values == 1)))


def _p_of_draws(means: Values) -> float:
    """Return twice the share of draws on the smaller side of 0, the mean itself counted as one more (Davison 1997)."""
    smaller = min(int((means <= 0).sum()), int((means >= 0).sum()))
    return min(1.0, 2 * (smaller + 1) / (len(means) + 1))


def _p_of_normal(mean: float, variance: float, count: int) -> float:
    if variance == 0:
        return 1.0 if mean == 0 else 0.0
    return erfc(abs(mean) / sqrt(variance / (count - 1)) / sqrt(2))


def mcnemar(gained: int, lost: int) -> float:
    """Return the p of McNemar's exact test (1947): gains and losses are as frequent, by the binomial distribution.

    Args:
        gained, lost: pairs that differ in the one and in the other way.
    """
    count, fewer = gained + lost, min(gained, lost)
    if count <= EXACT:
        term = total = 1
        for size in range(1, fewer + 1):
            term = term * (count - size + 1) // size
            total += term
        return min(1.0, 2 * total / (1 << count))
    sizes = np.arange(fewer, 0, -1, dtype=np.float64)
    first = exp(lgamma(count + 1) - lgamma(fewer + 1) - lgamma(count - fewer + 1) - count * log(2))
    return min(1.0, 2 * first * (1 + float(np.cumprod(sizes / (count - sizes + 1)).sum())))


def holm(values: Sequence[float]) -> list[float]:
    """Return the values of p adjusted for their number by Holm's step-down method (1979)."""
    adjusted, reached = [0.0] * len(values), 0.0
    for place, index in enumerate(sorted(range(len(values)), key=lambda index: values[index])):
        reached = max(reached, min(1.0, (len(values) - place) * values[index]))
        adjusted[index] = reached
    return adjusted
