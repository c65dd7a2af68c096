"""Decisions of recipe `refine`, as pure functions: a count of votes, and what follows a failed attempt."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Literal

from pydantic import Field

from batchyard.recipes import NestedOptions

Strategy = Literal["majority", "weighted", "unanimous"]


@dataclass(frozen=True)
class Vote:
    """A vote. One without an answer is not for anything."""

    answer: str | None
    weight: float = 1.0


@dataclass(frozen=True)
class Count:
    """A count of votes."""

    tally: dict[str, float]  # the votes for each answer, or their weights, in the order of the first votes
    leading: list[str]  # the answers with the most; several in a tie, none without votes
    agreed: bool  # with strategy `unanimous`, every voter has voted, and for the same answer; else there is an answer


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


@dataclass(frozen=True)
class Attempt:
    """An attempt that was not accepted."""

    tier: int  # from 0
    category: str  # of the first failure
    failures: int  # number of gates that it failed; 1 for a vote, a review, or a request without an answer
    text: str | None  # anything that is equal for equal answers; None without an answer


class PolicyOptions(NestedOptions):
    """When an item goes to the next tier, or to a person."""

    unchanged: int = Field(3, ge=2, description="Equal answers in a row after which a person is needed")
    repeat: int = Field(2, ge=1, description="Attempts in a row with one category that end a tier")
    failures: int = Field(3, ge=1, description="An attempt with more failures than these ends a tier")
    budget: int = Field(4, ge=1, le=100, description="Most attempts on the first tier")
    later_budget: int = Field(6, ge=1, le=100, description="Most attempts on each later tier")
    friction: int = Field(4, ge=2, description="Attempts after which a tier has to make progress")
    stalled: int = Field(4, ge=2, description="Attempts over which failures have to fall then")
    categories: int = Field(3, ge=1, description="More categories than these are no progress then")


@dataclass(frozen=True)
class Decision:
    """What is next, and which rule says so. A retry has no reason."""

    action: Literal["retry", "escalate", "stuck"]
    reason: str | None = None


def decide(history: Sequence[Attempt], rules: PolicyOptions, budgets: Sequence[int]) -> Decision:
    """Return what follows the last attempt of a history. Its attempts are on tiers that never go down.

    An item is stuck if its last answers are equal, whichever tiers have written them. Otherwise the attempts on the
    present tier alone count: the first rule that holds gives the tier up, for the next one, or for a person after the
    last one.

    `budgets`: most attempts on each tier.
    """
    texts = [attempt.text for attempt in history[-rules.unchanged :]]
    if len(texts) == rules.unchanged and texts[0] is not None and len(set(texts)) == 1:
        return Decision("stuck", "no_change")
    tier = history[-1].tier
    reason = _given_up([attempt for attempt in history if attempt.tier == tier], budgets[tier], rules)
    if reason is None:
        return Decision("retry")
    return Decision("escalate" if tier + 1 < len(budgets) else "stuck", reason)


def _given_up(attempts: Sequence[Attempt], budget: int, rules: PolicyOptions) -> str | None:
    """Return the rule by which a tier is given up after these attempts on it."""
    last = [attempt.category for attempt in attempts[-rules.repeat :]]
    if len(last) == rules.repeat and len(set(last)) == 1:
        return "repeat"
    if attempts[-1].failures > rules.failures:
        return "failures"
    if len(attempts) >= budget:
        return "budget"
    fell = len(attempts) > 1 and attempts[-1].failures < attempts[-2].failures
    if len(attempts) >= rules.friction and not fell and _rubs(attempts, rules):
        return "friction"
    return None


def _rubs(attempts: Sequence[Attempt], rules: PolicyOptions) -> bool:
    """True if a category came back, failures did not fall, or categories are many."""
    categories = [attempt.category for attempt in attempts]
    runs = [category for category, _ in groupby(categories)]
    window = attempts[-rules.stalled :]
    stalled = len(window) == rules.stalled and window[-1].failures >= window[0].failures
    return len(set(runs)) < len(runs) or stalled or len(set(categories)) > rules.categories
