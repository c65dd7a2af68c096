"""Intervals of 95 %: a bootstrap of prompts for means, Wilson's for proportions."""

from collections.abc import Sequence
from functools import cache
from math import cos, pi, sin, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

DRAWS = 10_000
SEED = 42
Z = 1.959963984540054
"""The normal distribution's quantile of 97.5 %."""
MOST_DRAWN = 10_000
"""Values to draw from. The mean of more is close to normal, and drawing takes time with their number."""
FEWEST = 6
"""Fewer differences have no interval: even if all have one sign, that happens by chance in more than 5 % (2 / 2^5)."""
BLOCK = 1 << 20
"""Indices drawn at once."""


def of_means(columns: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return the intervals of the means of columns, by the same draws."""
    drawn = draws([np.asarray(column, np.float64) for column in columns])
    return [of_draws(means, len(column)) for means, column in zip(drawn, columns, strict=True)]


def of_draws(means: NDArray[np.float64], count: int) -> tuple[float, float]:
    """Return the interval of a mean by means of draws: the expanded percentiles.

    Percentiles 2.5 and 97.5 are too narrow for few values, as draws have the deviation of the values themselves, and
    the normal distribution's tails.

    Source: T. Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69 (2015), 4.3.
    """
    share = _share(count)
    low, high = np.percentile(means, [100 * share, 100 * (1 - share)])
    return float(low), float(high)


@cache
def _share(count: int) -> float:
    """Return the share of draws below a mean's interval; it tends to 2.5 %."""
    return NormalDist().cdf(-sqrt(count / (count - 1)) * student(count - 1)) if count > 1 else 0.025


def student(freedom: int) -> float:
    """Return the quantile of 97.5 % of Student's t with so many degrees of freedom, by bisection.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    odd = freedom % 2
    steps = np.arange(1 + odd, freedom - 1, 2)
    low, high = 0.0, pi / 2  # angles whose tangent is t over the root of `freedom`
    while low < (angle := (low + high) / 2) < high:
        terms = np.cumprod(steps / (steps + 1) * cos(angle) ** 2)
        series = sin(angle) * (1 + float(terms.sum()))
        if odd:
            series = 2 / pi * (angle + (series * cos(angle) if freedom > 1 else 0))
        low, high = (angle, high) if series < 0.95 else (low, angle)
    return sqrt(freedom) * sin(low) / cos(low)


def draws(columns: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Return the means of DRAWS draws with replacement. Columns of one length are drawn alike."""
    means: list[NDArray[np.float64]] = [np.empty(0)] * len(columns)
    for count in {len(column) for column in columns}:
        places = [place for place, column in enumerate(columns) if len(column) == count]
        table = np.asarray([columns[place] for place in places])
        source = np.random.RandomState(SEED)
        drawn = np.empty((DRAWS, len(table)))
        rows = max(1, BLOCK // count)
        for start in range(0, DRAWS, rows):
            indices = source.randint(0, count, size=(min(rows, DRAWS - start), count))
            cells = indices + count * np.arange(len(indices))[:, None]
            times = np.bincount(cells.ravel(), minlength=count * len(indices)).reshape(len(indices), count)
            drawn[start : start + len(indices)] = times @ table.T / count
        for place, column in zip(places, drawn.T, strict=True):
            means[place] = column
    return means


def normal(mean: float, variance: float, count: int) -> tuple[float, float]:
    """Return the normal interval of the mean of so many values. `variance` is that of the values."""
    half = Z * sqrt(variance / (count - 1))
    return mean - half, mean + half


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion. Of nothing it is (0, 1)."""
    if count == 0:
        return 0.0, 1.0
    share = successes / count
    scale = 1 + Z**2 / count
    middle = (share + Z**2 / (2 * count)) / scale
    half = Z / scale * sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return max(0.0, middle - half) if successes else 0.0, min(1.0, middle + half) if successes < count else 1.0


def document(mean: float | None, n: int, interval: tuple[float, float] | None) -> dict[str, Any]:
    """Return a mean of `n` values with its interval, as metrics.json has it."""
    return {"mean": mean, "n": n, "intervals": {} if interval is None else {"mean": list(interval)}}


def share(successes: int, count: int) -> dict[str, Any]:
    """Return a proportion with its number of cases and Wilson's interval, as metrics.json has it."""
    return document(successes / count, count, wilson(successes, count)) if count else document(None, 0, None)
