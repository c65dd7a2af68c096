"""Votes of several models over what is extracted of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Strategy = Literal["majority", "weighted", "unanimous"]


@dataclass(frozen=True)
class Vote:
    """A vote. One without an answer is not for anything."""

    answer: str | None
    weight: float = 1.0


@dataclass(frozen=True)
class Count:
    """A count of votes.

    Attributes:
        tally: the votes for each answer, or their weights, in the order of the first votes.
        leading: the answers with the most; several in a tie, none without votes.
        agreed: with strategy `unanimous`, every voter has voted, and for the same answer; else there is an answer.
    """

    tally: dict[str, float]
    leading: list[str]
    agreed: bool


def count(votes: Sequence[Vote], strategy: Strategy) -> Count:
    """Count votes. Weights count with strategy `weighted` alone, and exactly: 0.1 and 0.2 are as much as 0.3."""
    sums: dict[str, Fraction] = {}
    for vote in votes:
        if vote.answer is not None:
            weight = Fraction(str(vote.weight)) if strategy == "weighted" else Fraction(1)
            sums[vote.answer] = sums.get(vote.answer, Fraction(0)) + weight
    leading = [answer for answer, total in sums.items() if total == max(sums.values())]
    agreed = bool(leading)
    if strategy == "unanimous":
        agreed = {vote.answer for vote in votes} == set(leading) and len(leading) == 1
    return Count({answer: float(total) for answer, total in sums.items()}, leading, agreed)
