"""SUPG's choice of thresholds for a filter, to compare: Kang et al., VLDB 2020, after the paper's description.

Rows are sampled with replacement, with chances by the square root of their scores, mixed with a tenth of equal ones.
The bounds are normal approximations. The sample has a fixed size, and two ways reach both targets:

* `joint`, the paper's: one threshold for recall; the large model answers all rows above it, so precision is 1.
* `two cuts`: beside it a threshold for precision, each with half of the sample and of the risk. The large model answers
  the rows between them, as in a cascade.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

STEP = 100
"""Sampled rows between two candidates of a threshold for precision."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]


class Selection(NamedTuple):
    """What became of the rows: those that the large model answers, and the targets that are reached."""

    large: int
    precision: float
    recall: float


def _bound(values: Floats, risk: float, sign: int) -> float:
    """Return the lower (`sign` -1) or upper (1) bound of a mean."""
    return float(values.mean() + sign * values.std() / math.sqrt(len(values)) * math.sqrt(2 * math.log(1 / risk)))


def _sample(scores: Floats, size: int, draw: np.random.Generator) -> tuple[Indices, Floats]:
    """Return sampled rows, and the factors that make their means those of all rows."""
    roots = np.sqrt(scores)
    chances = 0.9 * roots / roots.sum() + 0.1 / len(scores)
    rows = draw.choice(len(scores), size, p=chances / chances.sum())
    return rows, 1 / len(scores) / chances[rows]


def _recall_cut(scores: Floats, wanted: Flags, rows: Indices, factors: Floats, recall: float, risk: float) -> float:
    """Return the least score of the rows that are kept."""
    order = np.argsort(-scores[rows], kind="stable")
    sampled, found = scores[rows][order], (wanted[rows] * factors)[order]
    if not found.any():
        return -math.inf

    def highest(share: float) -> float:
        """Return the highest cut above which this share of the sampled wanted rows lies."""
        reached = np.cumsum(found) >= share * found.sum() * (1 - 1e-12)
        return float(sampled[np.argmax(reached)])

    cut = highest(recall)
    above = _bound(found * (sampled >= cut), risk / 2, 1)
    below = _bound(found * (sampled < cut), risk / 2, -1)
    return highest(above / (above + max(0.0, below)))


def _precision_cut(
    scores: Floats, wanted: Flags, precision: float, size: int, risk: float, draw: np.random.Generator
) -> tuple[float, Indices]:
    """Return the least score of rows that are taken unseen, and the rows of both stages of the sample."""
    first, factors = _sample(scores, size // 2, draw)
    most = len(scores) * _bound(wanted[first] * factors, risk / 2, 1)
    pool = np.argsort(-scores, kind="stable")[: max(1, math.ceil(most / precision))]
    second = draw.choice(pool, size // 2)
    second = second[np.argsort(-scores[second], kind="stable")]
    candidates = range(STEP, len(second) + 1, STEP)
    cut = math.inf
    for number in candidates:
        score = scores[second[number - 1]]
        values = wanted[second[scores[second] >= score]].astype(float)
        if _bound(values, risk / 2 / len(candidates), -1) > precision:
            cut = float(score)
    return cut, np.concatenate((first, second))


def joint(scores: Floats, wanted: Flags, target: float, size: int, risk: float, draw: np.random.Generator) -> Selection:
    """Have the large model answer the sample and all rows above the threshold for recall."""
    rows, factors = _sample(scores, size, draw)
    asked = scores >= _recall_cut(scores, wanted, rows, factors, target, risk)
    asked[rows] = True
    return Selection(int(asked.sum()), 1.0, float((asked & wanted).sum() / max(1, wanted.sum())))


def two_cuts(
    scores: Floats, wanted: Flags, target: float, size: int, risk: float, draw: np.random.Generator
) -> Selection:
    """Have the large model answer the sample and the rows between the thresholds of both targets."""
    rows, factors = _sample(scores, size // 2, draw)
    lower = _recall_cut(scores, wanted, rows, factors, target, risk / 2)
    upper, others = _precision_cut(scores, wanted, target, size // 2, risk / 2, draw)
    unseen = np.ones(len(scores), bool)
    unseen[np.concatenate((rows, others))] = False
    accepted = unseen & (scores >= upper)
    rejected = unseen & (scores < lower) & ~accepted
    right = int((wanted & ~rejected).sum())
    extra = int((accepted & ~wanted).sum())
    large = len(scores) - int((accepted | rejected).sum())
    return Selection(large, right / max(1, right + extra), right / max(1, int(wanted.sum())))
