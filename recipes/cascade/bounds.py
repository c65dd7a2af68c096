"""Which rows a small model may answer, so that most of its answers equal a large model's.

## One target: the share of equal answers

**Setting.** There are n rows. Each has an answer of the proxy with a confidence, and an answer of the large model,
whether or not that is ever asked. A row is an *error* if the two differ. All of this is fixed. Only the sample is
random: s rows, each set of s as likely as any other. A cut accepts the rows with a higher confidence. The proxy
answers accepted rows that are not in the sample, and the large model answers all others. The proxy may answer b
errors. Rows that have trained a classifier are none of the n: the large model answers them, and given them the sample
of the others is as random as before.

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

## Two targets: precision and recall

**Setting.** Each row has a score of the proxy. A row is *wanted* if the large model says yes to it. W rows are wanted.
One cut accepts all rows with a higher score, another one rejects all rows with a lower score. Accepted and rejected
rows that are not in the sample stay as they are: the output has the accepted ones. The large model decides all others.
Of the sample, m rows are wanted. Binomial(t, q) is the number of successes in t trials with probability q.

**Lemma.** Of a set of rows that the sample does not influence, a share above q is marked. Given that t of the set are
in the sample, at most k of these are marked with probability P(Binomial(t, q) <= k) or less, if k <= tq - 1. This holds
because the number of marked rows is hypergeometric, hence a sum of independent indicators (Vatutin and Mikhailov 1982),
and with the given mean such a sum has the heaviest lower tail if all have equal probabilities (Hoeffding 1956).

**Recall.** Take q = 1 - recall, and k such that P(Binomial(m, q) <= k) is at most d, and k <= mq - 1. Then, with
probability 1 - d or more, every lower cut that rejects at most k sampled wanted rows loses at most qW wanted rows.

*Proof.* Let b be the integer part of qW. A cut that loses more than b wanted rows rejects the b + 1 wanted rows with
the lowest scores. The sample has no part in these, and they are a share above q of all wanted rows. At most k of them
are in the sample. Given m, the lemma bounds the probability of that by d.

The denominator of recall, W, is unknown, and nothing estimates it: the m sampled wanted rows are a uniform sample of
all wanted rows, and recall is a share of these.

**Precision.** Let a = recall (1 - precision) / precision, q = a / (1 + a), and k such that
P(Binomial(m + k, q) <= k) is at most d, and k <= (m + k)q - 1. Then, with probability 1 - d or more, every upper cut
that accepts at most k sampled rows that are not wanted leaves at most aW such rows in the output. If recall holds, the
output has at least recall W wanted rows, so its precision is reached.

*Proof.* Let b be the integer part of aW, and F the b + 1 rows with the highest scores that are not wanted. Mark F in
the set of F and all wanted rows: its share is above q. Let f be the number of rows of F in the sample, which then has
t = m + f rows of the set. Both conditions on k hold for any smaller number, too. A cut that leaves more than b unwanted
rows accepts all of F, so f <= k, and f is a number for which they hold. So, given t, f is at most the largest number x
with P(Binomial(t, q) <= x) <= d and x <= tq - 1. By the lemma this has probability d or less.

As above, the number of cuts and ties do not matter. Both targets and all looks have equal shares of the risk.

Choosing thresholds for precision and recall by a sample is an idea of SUPG (Kang et al., VLDB 2020); bounds that hold
for finite samples are one of BARGAIN (arXiv 2509.02896). Both bound each candidate of a threshold by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchyard.comparing.shares import at_most

LOOKS = 5
"""Maximum number of looks at the sample."""
GROWTH = 3.0
"""Ratio of a look's sample size to that of the look before."""
LARGEST = 0.5
"""Maximum share of the rows in a sample: a larger one saves little."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Look(NamedTuple):
    """A size of the sample at which a cut may be chosen. `errors`: sampled errors that a cut may accept."""

    sample: int
    errors: int


class Tail(NamedTuple):
    """What one cut may leave to the proxy: the rows with the highest scores."""

    scores: Floats  # of the rows that the proxy has answered, in rising order
    errors: Sequence[tuple[int, float]]  # rank in the order of sampling, from 0, and score of each sampled error
    looks: Sequence[Look]  # all looks; of a later one, the errors as far as they can be forecast


class CutDecision(NamedTuple):
    """What follows from a sample."""

    upper: float  # rows with a higher score are accepted; infinity if nothing is certified
    lower: float  # rows with a lower score that are not accepted are rejected; minus infinity likewise
    sample: int  # rows that have to be sampled for the next look; 0 if no look comes
    saved: float  # rows that the proxy is forecast to answer; 0 before a sample

    def accepts(self, scores: Floats) -> Flags:
        return scores > self.upper

    def rejects(self, scores: Floats) -> Flags:
        return (scores < self.lower) & ~self.accepts(scores)


def most_errors(rows: int, budget: int, sample: int, risk: float) -> int:
    """Return the most sampled errors that a cut may accept, -1 if no cut can be certified."""
    # The probability grows with the errors: one row and one sampled error more.
    return _most(lambda errors: at_most(errors, rows, min(rows, budget + 1 + errors), sample) <= risk, sample)


def shares(precision: float, recall: float) -> tuple[float, float]:
    """Return the shares of errors, q, that mean too little precision, and too little recall."""
    excess = recall * (1 - precision) / precision
    return excess / (1 + excess), 1 - recall


def most_unwanted(wanted: int, share: float, risk: float) -> int:
    """Return how many unwanted sampled rows may be accepted beside `wanted` wanted ones; -1 if none is certified."""
    return _most(
        lambda errors: _is_rare(errors, wanted + errors, share, risk), math.ceil(wanted * share / (1 - share)) + 1
    )


def most_lost(wanted: int, share: float, risk: float) -> int:
    """Return how many of `wanted` wanted sampled rows may be rejected; -1 if none is certified."""
    return _most(lambda errors: _is_rare(errors, wanted, share, risk), wanted)


def _is_rare(errors: int, draws: int, share: float, risk: float) -> bool:
    """Return whether a binomial number is at most `errors` with at most this risk, and the lemma holds for it."""
    if errors > draws * share - 1:
        return False
    counts = np.arange(errors)
    ratios = (draws - counts) / (counts + 1) * (share / (1 - share))
    logarithms = draws * math.log1p(-share) + np.concatenate(([0.0], np.cumsum(np.log(ratios))))
    return float(np.exp(logarithms).sum()) <= risk


def _most(holds: Callable[[int], bool], high: int) -> int:
    """Return the most errors below `high` for which a condition holds that holds for all fewer; -1 if for none."""
    low = -1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def looks(rows: int, budget: int, risk: float) -> list[Look]:
    """Return the looks at a sample of `rows`, none if so few rows cannot certify anything.

    The first look's sample is the least that certifies a cut without sampled errors.
    """
    for number in range(LOOKS, 0, -1):
        low, first = 0, rows
        while low + 1 < first:
            middle = (low + first) // 2
            certifies = at_most(0, rows, min(rows, budget + 1), middle) <= risk / number
            low, first = (low, middle) if certifies else (middle, first)
        sizes = [math.ceil(first * GROWTH**look) for look in range(number)]
        if sizes[-1] <= LARGEST * rows:
            return [Look(size, most_errors(rows, budget, size, risk / number)) for size in sizes]
    return []


def with_budget(made: Sequence[Look], rows: int, budget: int, risk: float) -> list[Look]:
    """Return looks at the same sizes for another budget."""
    return [Look(size, most_errors(rows, budget, size, risk / len(made))) for size, _ in made]


def sample_sizes(rows: int, least: float, risk: float) -> list[int]:
    """Return the sample sizes of the looks for two targets; none if so few rows cannot certify anything.

    The last size is the largest that may pay, since the number of wanted rows is unknown.

    Args:
        least: the share of errors, of both targets, that is certified by fewer rows.
        risk: of one target.
    """
    for number in range(LOOKS, 0, -1):
        made = [math.floor(LARGEST * rows / GROWTH**look) for look in reversed(range(number))]
        if _is_rare(0, made[0], least, risk / number):
            return made
    return []


def decide(tails: Sequence[Tail], rows: int, sample: int) -> CutDecision:
    """Choose cuts by the looks so far, and whether a later look is worth its sample.

    Args:
        tails: what the upper cut accepts, and what the lower one rejects, if there is one: its scores are negative.
    """

    def saved(cuts: Sequence[float], size: int) -> float:
        """Return how many rows the proxy answers, as far as the sample is spread evenly."""
        decided = [
            len(tail.scores) - int(np.searchsorted(tail.scores, cut, "right"))
            for tail, cut in zip(tails, cuts, strict=True)
        ]
        return min(sum(decided), len(tails[0].scores)) * (1 - size / rows)

    best = [
        min((_cut(tail, *look) for look in tail.looks if look.sample <= sample), default=math.inf) for tail in tails
    ]
    sizes = [look.sample for look in tails[0].looks]
    most, size = saved(best, sample), 0
    if sample == 0:
        size = sizes[0] if sizes and len(tails[0].scores) else 0
    else:
        for place, larger in enumerate(sizes):
            if larger > sample:
                seen = [math.floor(tail.looks[place].errors * sample / larger) for tail in tails]
                cuts = [min(cut, _cut(tail, sample, few)) for tail, cut, few in zip(tails, best, seen, strict=True)]
                if (forecast := saved(cuts, larger)) > most:
                    most, size = forecast, larger
    upper, lower = best[0], -best[1] if len(best) > 1 else -math.inf
    # Between cuts that cross, either is certified: the proxy's own answer decides.
    return CutDecision(min(max(upper, 0.5), lower) if upper < lower else upper, lower, size, most)


def _cut(tail: Tail, sample: int, most: int) -> float:
    """Return the lowest cut that accepts at most so many errors of a sample."""
    if most < 0:
        return math.inf
    errors = sorted((score for rank, score in tail.errors if rank < sample), reverse=True)
    return errors[most] if most < len(errors) else -math.inf
