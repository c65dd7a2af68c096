"""Which rows a small model may answer, so that most of its answers equal a large model's.

**Setting.** There are n rows. Each has an answer of the proxy with a confidence, and an answer of the large model,
whether or not that is ever asked. A row is an *error* if the two differ. All of this is fixed. Only the sample is
random: s rows, each set of s as likely as any other. A cut accepts the rows with a higher confidence. The proxy
answers accepted rows that are not in the sample, and the large model answers all others. The proxy may answer b
errors.

**Theorem.** Let k be such that, of b + 1 + k given rows, at most k are in the sample with probability d or less.
Then, with probability 1 - d or more, every cut that accepts at most k sampled errors leaves at most b errors to the
proxy.

**Proof.** Order all errors by confidence, the highest first, and let F be the first b + 1 + k of them, filled up with
other rows if there are fewer. The sample has no part in F. Suppose that a cut accepts at most k sampled errors and
more than b others. The errors that it accepts come first in the order. If they include F, then at most k rows of F
are in the sample. If not, F includes them, so b + 1 rows of F or more are not in the sample, and at most k are.
Either way at most k rows of F are in the sample, which has probability d or less.

So it does not matter how many cuts there are, or that the sample chooses one. Nor do equal confidences: a cut accepts
all rows of one confidence or none. Only looks at a growing sample need a correction. Their sizes are fixed before
anything is sampled, and each look has an equal share of the risk, so the union bound holds whichever look is the
last.

This is a tolerance limit (Wilks 1941) for a finite population. Confidence sequences for sampling without replacement
(Waudby-Smith and Ramdas, arXiv 2006.04347 and 2010.09686) bound the errors of one cut, and need a correction for
many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchyard.comparing.shares import at_most

LOOKS = 5
"""Looks at the sample, at most."""
GROWTH = 3.0
"""Size of a look's sample by that of the look before."""
LARGEST = 0.5
"""Share of the rows that a look's sample has at most: beyond that little can be saved."""

Floats = NDArray[np.float64]


class Look(NamedTuple):
    """A size of the sample at which a cut may be chosen. `errors`: sampled errors that a cut may accept."""

    sample: int
    errors: int


class CutDecision(NamedTuple):
    """What follows from a sample.

    Attributes:
        cut: rows with a higher confidence need no large model; infinity if nothing is certified.
        sample: rows that have to be sampled for the next look; 0 if no look comes.
        errors: sampled errors that the cut accepts, None without a cut.
    """

    cut: float
    sample: int
    errors: int | None


def most_errors(rows: int, budget: int, sample: int, risk: float) -> int:
    """Return the most sampled errors that a cut may accept, -1 if no cut can be certified."""

    def holds(errors: int) -> bool:
        return at_most(errors, rows, min(rows, budget + 1 + errors), sample) <= risk

    low, high = -1, sample  # the probability grows with the errors: one row and one sampled error more
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def looks(rows: int, budget: int, risk: float) -> list[Look]:
    """Return the looks at a sample of `rows`, none if so few rows cannot certify anything.

    The first look's sample is the least that certifies a cut without sampled errors.
    """
    for number in range(LOOKS, 0, -1):
        first = _least_sample(rows, budget, risk / number)
        sizes = [math.ceil(first * GROWTH**look) for look in range(number)]
        if sizes[-1] <= LARGEST * rows:
            return [Look(size, most_errors(rows, budget, size, risk / number)) for size in sizes]
    return []


def _least_sample(rows: int, budget: int, risk: float) -> int:
    """Return the least sample that certifies a cut if it has no error."""
    low, high = 0, rows
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at_most(0, rows, min(rows, budget + 1), middle) <= risk else (middle, high)
    return high


def decide(
    confidences: Floats, rows: int, sample: int, errors: Sequence[tuple[int, float]], steps: Sequence[Look]
) -> CutDecision:
    """Choose a cut by the looks so far, and whether a later look is worth its sample.

    Args:
        confidences: of the rows that the proxy has answered, in rising order.
        rows: the number of all rows.
        sample: the number of rows that were sampled.
        errors: rank in the order of sampling, from 0, and confidence of each sampled error.
        steps: all looks.
    """

    def saved(cut: float, size: int) -> float:
        """Return how many rows the proxy answers, as far as the sample is spread evenly."""
        return (len(confidences) - int(np.searchsorted(confidences, cut, "right"))) * (1 - size / rows)

    best = CutDecision(math.inf, 0, None)
    for step in steps:
        if step.sample <= sample:
            seen = sorted((confidence for rank, confidence in errors if rank < step.sample), reverse=True)
            cut = _cut(seen, step.errors)
            if cut < best.cut:
                best = CutDecision(cut, 0, min(step.errors, len(seen)))
    if sample == 0:
        return best._replace(sample=steps[0].sample if steps and len(confidences) else 0)
    seen = sorted((confidence for _, confidence in errors), reverse=True)
    most, size = saved(best.cut, sample), 0
    for step in steps:
        if step.sample > sample:
            forecast = saved(_cut(seen, math.floor(step.errors * sample / step.sample)), step.sample)
            if forecast > most:
                most, size = forecast, step.sample
    return best._replace(sample=size)


def _cut(errors: Sequence[float], most: int) -> float:
    """Return the lowest cut that accepts at most so many errors, whose confidences fall."""
    if most < 0:
        return math.inf
    return errors[most] if most < len(errors) else -math.inf
