"""Exact confidence bounds on a share, from a uniform sample without replacement."""

from collections.abc import Callable
from math import exp, lgamma


def share_bounds(found: int, sample: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return between what ends the share of a whole lies, of which a sample has `found`.

    It is the exact interval that inverts two one-sided hypergeometric tests, each at half of 1 - `confidence`.
    """
    tail = (1 - confidence) / 2
    low, high = found, total - sample + found
    lowest = _first(low, high, lambda marked: _at_least(found, sample, marked, total) > tail)
    # At most `found` in the sample is the same as at least `sample - found` of the others.
    others = _first(total - high, total - low, lambda rest: _at_least(sample - found, sample, rest, total) > tail)
    return lowest / total, (total - others) / total


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the least number for which a condition holds that holds for all above it; `high` at most."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _at_least(found: int, sample: int, marked: int, total: int) -> float:
    """Return the probability of at least `found` marked ones in a sample, if the whole has `marked`."""
    first, last = max(found, sample - (total - marked)), min(sample, marked)
    whole = _log_choose(total, sample)
    return sum(
        exp(_log_choose(marked, one) + _log_choose(total - marked, sample - one) - whole)
        for one in range(first, last + 1)
    )


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
