"""Rows with planted scores and answers, and runs of a filter's own decisions over them, without models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.cascade import bounds
from recipes.cascade.options import Cascade
from recipes.cascade.rounds import SAMPLE, Findings
from tests.recipes.cascade.simulated import KINDS, decided


@dataclass
class Rows:
    """The small model's probabilities of yes, and where the large model says yes."""

    scores: np.ndarray
    wanted: np.ndarray

    def best(self, precision: float, recall: float) -> int:
        """Return how many rows the best cuts leave to the large model, known to whoever knows all answers."""
        number, total = len(self.scores), int(self.wanted.sum())
        extra = recall * total * (1 - precision) / precision

        def fits(scores: np.ndarray, errors: np.ndarray, budget: float) -> int:
            order = np.argsort(-scores, kind="stable")
            is_last = np.append(scores[order][1:] != scores[order][:-1], True)  # of its score
            fitting = np.flatnonzero(is_last & (np.cumsum(errors[order]) <= budget + 1e-9))
            return int(fitting[-1]) + 1 if fitting.size else 0

        decided = fits(self.scores, ~self.wanted, extra) + fits(-self.scores, self.wanted, (1 - recall) * total)
        return max(0, number - decided)


@dataclass
class Run:
    """What became of all rows: whether both targets are reached, and who was asked."""

    precision: float
    recall: float
    is_missed: bool
    large: int
    sampled: int


def options(precision: float, recall: float, confidence: float = 0.95) -> Cascade:
    targets = {"precision": precision, "recall": recall, "confidence": confidence}
    return Cascade(model="large", proxy="small", labels=["yes", "no"], **targets)


def rows(kind: str, number: int, precision: float, recall: float, draw: np.random.Generator) -> Rows:
    """Return rows of one of KINDS."""
    level, chance = draw.random(number), draw.random(number)
    if kind == "easy":  # two rows of five are wanted, and most scores say so
        scores = draw.beta(0.1, 0.15, number)
        wanted = chance < scores
    elif kind == "hard":
        scores, wanted = level, chance < level**2
    elif kind == "useless":  # the score says nothing
        scores, wanted = level, chance < 0.4
    elif kind == "adversarial":  # errors enough to miss both targets, and hardly more, at both ends
        total = 3 * number // 10
        shares = bounds.shares(precision, recall)
        sizes = bounds.sample_sizes(number, max(shares), 0.025)
        size, risk = sizes[draw.integers(len(sizes))], 0.025 / len(sizes)
        found = total * size // number
        lost = int((1 - recall) * total) + 1 + max(0, bounds.most_lost(found, shares[1], risk))
        extra = int(recall * total * (1 - precision) / precision) + 1
        extra += max(0, bounds.most_unwanted(found, shares[0], risk))
        scores, wanted = np.sort(level), np.arange(number) >= number - total - extra + lost
        wanted[draw.permutation(2 * lost)[:lost]] = True
        wanted[number - 1 - draw.permutation(2 * extra)[:extra]] = False
    elif kind == "shifted":  # in the last fifth of the file the score says the opposite half of the time
        late = (np.arange(number) >= 0.8 * number) & (draw.random(number) < 0.5)
        scores = draw.beta(0.2, 0.3, number)
        wanted = chance < np.where(late, 1 - scores, scores)
    elif kind == "rare":  # 3 % positive
        wanted = chance < 0.03
        scores = np.where(wanted, draw.beta(5, 1, number), draw.beta(0.3, 8, number))
    elif kind == "ties":
        place = (5 * level).astype(int)
        scores, wanted = place / 4, chance < np.array([0.01, 0.03, 0.4, 0.97, 0.99])[place]
    else:
        raise ValueError(kind)
    return Rows(scores, wanted)


def run(of: Rows, how: Cascade, draw: np.random.Generator) -> Run:
    """Sample and decide as the recipe does, until only the large model's rest is left."""
    number, total = len(of.scores), int(of.wanted.sum())
    none = np.zeros(number, bool)
    findings = Findings(draw.permutation(number), of.scores, np.full(number, "", "U6"), none, of.wanted)
    decision, _ = decided(findings, how)
    by_proxy = findings.why != SAMPLE
    accepted, rejected = decision.accepts(of.scores) & by_proxy, decision.rejects(of.scores) & by_proxy
    extra, lost = int((accepted & ~of.wanted).sum()), int((rejected & of.wanted).sum())
    right = total - lost
    precision, recall = (right / all_ if all_ else 1.0 for all_ in (right + extra, total))
    is_missed = any(
        share + 1e-12 < target for share, target in zip((precision, recall), how.targets.values(), strict=True)
    )
    return Run(precision, recall, is_missed, number - int((accepted | rejected).sum()), int((~by_proxy).sum()))


def runs(kind: str, number: int, precision: float, recall: float, times: int) -> list[tuple[Rows, Run]]:
    """Return seeded runs over rows that are drawn anew for each."""
    made, how = [], options(precision, recall)
    for seed in range(times):
        draw = np.random.default_rng([seed, number, round(100 * precision), round(100 * recall), KINDS.index(kind)])
        drawn = rows(kind, number, precision, recall, draw)
        made.append((drawn, run(drawn, how, draw)))
    return made
