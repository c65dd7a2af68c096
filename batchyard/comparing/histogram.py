"""Histograms: numbers of values in logarithmic buckets. They merge, and their quantiles have a bounded relative error.

The buckets are those of DDSketch (Masson, Rim and Lee, 2019, arXiv 1908.10693): bucket i holds the values in
(BASE^(i-1), BASE^i].
"""

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping

RELATIVE_ERROR = 0.019
"""Largest difference of a quantile from the exact one, as a share of it, but for rounding: less than 2 %."""
BASE = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
LEAST = 1e-6
"""Smaller values count as this one."""

Histogram = Mapping[str, int]
"""Number of values by bucket. The keys are text, because a histogram is stored as JSON."""


def of(values: Iterable[float]) -> dict[str, int]:
    return dict(Counter(str(math.ceil(math.log(max(value, LEAST), BASE))) for value in values))


def merged(histograms: Iterable[Histogram]) -> dict[str, int]:
    total = Counter[str]()
    for histogram in histograms:
        total.update(histogram)
    return dict(total)


def count(histogram: Histogram) -> int:
    return sum(histogram.values())


def quantiles(histogram: Histogram, shares: Iterable[float]) -> list[float]:
    """Return for each share the least value that at least this share of the values do not exceed."""
    buckets = sorted((int(bucket), number) for bucket, number in histogram.items())
    reached = list(itertools.accumulate(number for _, number in buckets))
    ranks = [math.ceil(share * reached[-1]) for share in shares]
    return [2 * BASE ** buckets[bisect.bisect_left(reached, rank)][0] / (BASE + 1) for rank in ranks]
