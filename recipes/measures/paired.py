"""Paired comparisons: tests of mean differences, Holm's correction for several, and the agreement of two judges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import erfc, exp, lgamma, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recipes.measures import intervals

Values = NDArray[np.float64]
EXACT = 10_000
"""Most differing pairs whose binomial coefficients are whole numbers. For more they come from logarithms."""
LEVEL = 0.05
"""A difference is significant if its p is below."""
ROUNDING = 1e-12
"""Sums of the same values with other signs are equal if they differ by this part of all values."""


@dataclass(frozen=True)
class Difference:
    """A mean difference of pairs."""

    n: int  # pairs
    mean: float
    interval: tuple[float, float] | None  # of 95 %; None of fewer than `intervals.FEWEST` pairs
    p: float | None  # two-sided, of "the mean is 0"; None without an interval
    test: Literal["mcnemar", "permutation", "normal"]


def differences(pairs: Sequence[tuple[Values, Values]]) -> list[Difference]:
    """Return the mean of `left - right` of each pair of columns.

    The interval is that of a bootstrap of the pairs, and p that of the permutation test of pairs: of what the sides
    could have been had each pair been swapped or not by chance. Where all values are 0 or 1, that is McNemar's exact
    test. Above `intervals.MOST_DRAWN` pairs both are the normal ones.
    """
    columns = [left - right for left, right in pairs]
    means = iter(intervals.draws([column for column in columns if drawn(len(column))]))
    graded = [
        column
        for (left, right), column in zip(pairs, columns, strict=True)
        if drawn(len(column)) and not (is_binary(left) and is_binary(right))
    ]
    ps = iter(permutation(graded))
    return [
        _difference(left, right, column, next(means) if drawn(len(column)) else None, ps)
        for (left, right), column in zip(pairs, columns, strict=True)
    ]


def drawn(count: int) -> bool:
    """Return True if the interval of a mean of so many values is that of draws."""
    return intervals.FEWEST <= count <= intervals.MOST_DRAWN


def _difference(left: Values, right: Values, column: Values, means: Values | None, ps: Iterator[float]) -> Difference:
    n = len(column)
    mean = float(column.mean()) if n else 0.0
    binary = is_binary(left) and is_binary(right)
    if n < intervals.FEWEST:
        return Difference(n, mean, None, None, "mcnemar" if binary else "permutation")
    variance = float(column.var())
    interval = intervals.normal(mean, variance, n) if means is None else intervals.of_draws(means, n)
    if binary:
        return Difference(n, mean, interval, mcnemar(int((column > 0).sum()), int((column < 0).sum())), "mcnemar")
    if means is None:
        p = float(mean == 0) if variance == 0 else erfc(abs(mean) / sqrt(variance / (n - 1)) / sqrt(2))
        return Difference(n, mean, interval, p, "normal")
    return Difference(n, mean, interval, next(ps), "permutation")


def is_binary(values: Values) -> bool:
    """Return True if all values are 0 or 1."""
    return bool(np.all((values == 0) | (values == 1)))


def permutation(columns: Sequence[Values]) -> list[float]:
    """Return each column's two-sided p: the share of sign changes with as extreme a sum.

    All sign changes of the values that are not 0 are looked at if they are no more than DRAWS; else DRAWS at random,
    the same for columns of one length, and the column itself as one more (Davison and Hinkley 1997, 4.3).

    Source: R. A. Fisher, The Design of Experiments, 1935, 21; E. J. G. Pitman, 1937.
    """
    ps = [0.0] * len(columns)
    many: dict[int, list[int]] = {}
    for place, column in enumerate(columns):
        changed = column[column != 0]
        if 1 << len(changed) <= intervals.DRAWS:
            swapped = np.arange(1 << len(changed))[:, None] >> np.arange(len(changed)) & 1
            ps[place] = float(_as_far(swapped, changed[None])[0]) / (1 << len(changed))
        else:
            many.setdefault(len(column), []).append(place)
    for count, places in many.items():
        table = np.asarray([columns[place] for place in places])
        source = np.random.RandomState(intervals.SEED)
        rows = max(1, intervals.BLOCK // count)
        reached = np.ones(len(places))
        for start in range(0, intervals.DRAWS, rows):
            reached += _as_far(source.randint(0, 2, size=(min(rows, intervals.DRAWS - start), count)), table)
        for place, number in zip(places, reached, strict=True):
            ps[place] = float(number) / (intervals.DRAWS + 1)
    return ps


def _as_far(swapped: NDArray[np.int64], table: Values) -> Values:
    """Return for each row in how many rows of `swapped` its sum is as far from 0."""
    sums = np.abs((1.0 - 2.0 * swapped) @ table.T)
    least = np.abs(table.sum(axis=1)) - ROUNDING * np.abs(table).sum(axis=1)
    reached: Values = (sums >= least).sum(axis=0, dtype=np.float64)
    return reached


def mcnemar(gained: int, lost: int) -> float:
    """Return the p of McNemar's exact test (1947): gains and losses are as frequent, by the binomial distribution."""
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


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return the values of p adjusted for their number by Holm's step-down method (1979). None stays as it is."""
    known = sorted((value, index) for index, value in enumerate(values) if value is not None)
    adjusted: list[float | None] = [None] * len(values)
    reached = 0.0
    for place, (value, index) in enumerate(known):
        reached = max(reached, min(1.0, (len(known) - place) * value))
        adjusted[index] = reached
    return adjusted


def side(interval: tuple[float, float] | None, p: float | None = None) -> int:
    """Return 1 or -1 if the difference is significant (interval and p), else 0."""
    if interval is None or (p is not None and p >= LEVEL):
        return 0
    return (interval[0] > 0) - (interval[1] < 0)


def kappa(one: Values, other: Values, scale: Sequence[float] | None = None) -> float | None:
    """Return Cohen's kappa: agreement beyond what chance gives, 1 for full agreement, 0 for that of chance.

    With a scale disagreement weighs by the square of its distance. None where both always say the same one thing.

    Source: J. Cohen, A coefficient of agreement for nominal scales (1960); Weighted kappa (1968).
    """
    labels = np.asarray(scale) if scale is not None else np.unique(np.concatenate([one, other]))
    table = np.zeros((len(labels), len(labels)))
    np.add.at(table, (np.searchsorted(labels, one), np.searchsorted(labels, other)), 1)
    table /= table.sum()
    distance = labels[:, None] - labels[None, :]
    weights = (distance != 0).astype(np.float64) if scale is None else np.square(distance)
    expected = float((weights * np.outer(table.sum(axis=1), table.sum(axis=0))).sum())
    return None if expected == 0 else 1 - float((weights * table).sum()) / expected
