"""Exact bounds on how many of a whole are marked, from a uniform sample without replacement."""

import math
from bisect import bisect_left

import numpy as np


def at_most(errors: int, rows: int, marked: int, sample: int) -> float:
    """Return the probability that a sample of so many rows has at most `errors` of the marked ones."""
    low = max(0, sample + marked - rows)
    if errors < low:
        return 0.0
    if errors >= min(marked, sample):
        return 1.0
    counts = np.arange(low, errors)
    ratios = (marked - counts) * (sample - counts) / ((counts + 1) * (rows - marked - sample + counts + 1.0))
    first = _choices(marked, low) + _choices(rows - marked, sample - low) - _choices(rows, sample)
    return min(1.0, float(np.exp(first + np.concatenate(([0.0], np.cumsum(np.log(ratios))))).sum()))


def _choices(total: int, chosen: int) -> float:
    """Return the logarithm of the number of ways to choose."""
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


def interval(rows: int, sample: int, errors: int, risk: float = 0.05, *, mid: bool = False) -> tuple[int, int]:
    """Return the least and the greatest number of errors among `rows` that a sample with `errors` is in line with.

    Each end is wrong with probability `risk` / 2 at most (Clopper and Pearson's method for a finite population); with
    `mid` on average (the mid-p method: half of the probability of `errors` counts on each side).
    """
    possible = range(errors, rows - sample + errors + 1)
    half = 0.5 if mid else 0.0

    def below(marked: int, weight: float) -> float:
        """Return the probability of fewer errors, with this part of that of as many."""
        fewer = at_most(errors - 1, rows, marked, sample)
        return fewer + weight * (at_most(errors, rows, marked, sample) - fewer)

    low = bisect_left(possible, True, key=lambda marked: 1 - below(marked, half) > risk / 2)
    high = bisect_left(possible, True, key=lambda marked: below(marked, 1 - half) <= risk / 2)
    return possible[min(low, len(possible) - 1)], possible[max(high - 1, 0)]


def share_bounds(
    found: int, sample: int, total: int, confidence: float = 0.95, *, mid: bool = False
) -> tuple[float, float]:
    """Return between what ends the share of a whole lies, of which a sample has `found`, see `interval`."""
    low, high = interval(total, sample, found, 1 - confidence, mid=mid)
    return low / total, high / total
