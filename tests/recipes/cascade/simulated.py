"""Rows with planted errors, and runs of the cascade's own decisions over them, without models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from recipes.cascade import bounds
from recipes.cascade.bounds import CutDecision
from recipes.cascade.options import Cascade
from recipes.cascade.rounds import SAMPLE, Findings

KINDS = ("easy", "hard", "useless", "adversarial", "shifted", "rare", "ties")


@dataclass
class Rows:
    """The small model's confidences, and where the large model's answer differs."""

    confidences: np.ndarray
    errors: np.ndarray

    def best(self, budget: int) -> int:
        """Return how many rows the best cut accepts, known to whoever knows all errors."""
        order = np.argsort(-self.confidences, kind="stable")
        confidences = self.confidences[order]
        is_last = np.append(confidences[1:] != confidences[:-1], True)  # of its confidence
        fits = np.flatnonzero(is_last & (np.cumsum(self.errors[order]) <= budget))
        return int(fits[-1]) + 1 if fits.size else 0


@dataclass
class Run:
    """What the small model answers (`proxy`), with how many `errors`, after a sample in so many looks."""

    proxy: int
    errors: int
    sampled: int
    looks: int


def options(agree: float, confidence: float = 0.95) -> Cascade:
    return Cascade(model="large", proxy="small", agree=agree, confidence=confidence)


def budget(agree: float, rows: int) -> int:
    """Return how many rows may differ."""
    return math.floor((1 - agree) * rows + 1e-9)


def rows(kind: str, number: int, agree: float, draw: np.random.Generator) -> Rows:
    """Return rows of one of KINDS."""
    level, chance = draw.random(number), draw.random(number)
    if kind == "easy":  # most rows are sure and right
        confidences = 1 - level**2 / 2
        errors = chance < np.where(confidences < 0.7, 0.25, 0.01)
    elif kind == "hard":
        confidences, errors = level, chance < 0.5 * (1 - level)
    elif kind == "useless":  # the confidence says nothing
        confidences, errors = level, chance < 0.5
    elif kind == "adversarial":  # errors enough to miss the target, and hardly more, where confidence is highest
        looks = bounds.looks(number, budget(agree, number), 0.05)
        look = looks[draw.integers(len(looks))].errors if looks else 0
        worst = min(number, budget(agree, number) + 1 + look)
        confidences, errors = level, np.zeros(number, bool)
        errors[draw.permutation(np.argsort(-level)[: 2 * worst])[:worst]] = True
    elif kind == "shifted":  # the last fifth of the file is another world
        late = np.arange(number) >= 0.8 * number
        confidences, errors = level, chance < (0.02 + 0.6 * late) * (1 - level / 2)
    elif kind == "rare":  # 3 % positive, and half of them missed
        positive = draw.random(number) < 0.03
        confidences = np.where(positive, 0.5 + 0.4 * level, 0.8 + 0.2 * level)
        errors = chance < np.where(positive, 0.5, 0.005)
    elif kind == "ties":
        confidences = np.floor(4 * level) / 4
        errors = chance < np.array([0.4, 0.1, 0.02, 0.01])[(4 * level).astype(int)]
    else:
        raise ValueError(kind)
    return Rows(confidences, errors)


def start(of: Rows, draw: np.random.Generator) -> Findings:
    """Return what is known after the small model's round."""
    number = len(of.errors)
    none = np.zeros(number, bool)
    return Findings(draw.permutation(number), of.confidences, np.full(number, "", "U6"), of.errors, none)


def run(of: Rows, agree: float, draw: np.random.Generator) -> Run:
    """Sample and decide as the recipe does, until only the large model's rest is left."""
    findings = start(of, draw)
    decision, looks = decided(findings, options(agree))
    by_proxy = decision.accepts(of.confidences) & (findings.why != SAMPLE)
    return Run(int(by_proxy.sum()), int((by_proxy & of.errors).sum()), int((findings.why == SAMPLE).sum()), looks)


def decided(findings: Findings, how: Cascade) -> tuple[CutDecision, int]:
    """Sample as long as that pays. Return the last decision, and the number of looks."""
    looks = 0
    while (decision := findings.decide(how)).sample:
        findings.why[list(findings.asked_next(decision, how))] = SAMPLE
        looks += 1
    return decision, looks


def runs(kind: str, number: int, agree: float, times: int) -> list[tuple[Rows, Run]]:
    """Return seeded runs over rows that are drawn anew for each."""
    made = []
    for seed in range(times):
        draw = np.random.default_rng([seed, number, round(100 * agree), KINDS.index(kind)])
        drawn = rows(kind, number, agree, draw)
        made.append((drawn, run(drawn, agree, draw)))
    return made
