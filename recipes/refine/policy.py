"""What becomes of an item of recipe `refine` after an attempt that was not accepted: one pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Attempt:
    """An attempt that was not accepted.

    Attributes:
        tier: from 0.
        category: of the first failure.
        failures: number of gates that it failed; 1 for a vote, a review, or a request without an answer.
        text: anything that is equal for equal answers; None without an answer.
    """

    tier: int
    category: str
    failures: int
    text: str | None


@dataclass(frozen=True)
class Rules:
    """The numbers of the rules.

    Attributes:
        budgets: most attempts on each tier.
        unchanged: equal answers in a row after which a person is needed.
        repeat: attempts in a row with one category after which a tier is given up.
        failures: failures of one attempt beyond which a tier is given up.
        friction: attempts on a tier after which it has to make progress.
        stalled: attempts over which failures have to fall then.
        categories: different categories beyond which a tier makes no progress.
    """

    budgets: tuple[int, ...]
    unchanged: int = 3
    repeat: int = 2
    failures: int = 3
    friction: int = 4
    stalled: int = 4
    categories: int = 3


@dataclass(frozen=True)
class Decision:
    """What is next, and which rule says so. A retry has no reason."""

    action: Literal["retry", "escalate", "stuck"]
    reason: str | None = None


def decide(history: Sequence[Attempt], rules: Rules) -> Decision:
    """Return what follows the last attempt of a history. Its attempts are on tiers that never go down.

    An item is stuck if its last answers are equal, whichever tiers have written them. Otherwise the attempts on the
    present tier alone count: the first rule that holds gives the tier up, for the next one, or for a person after the
    last one.
    """
    texts = [attempt.text for attempt in history[-rules.unchanged :]]
    if len(texts) == rules.unchanged and texts[0] is not None and len(set(texts)) == 1:
        return Decision("stuck", "no_change")
    tier = history[-1].tier
    reason = _given_up([attempt for attempt in history if attempt.tier == tier], rules.budgets[tier], rules)
    if reason is None:
        return Decision("retry")
    return Decision("escalate" if tier + 1 < len(rules.budgets) else "stuck", reason)


def _given_up(attempts: Sequence[Attempt], budget: int, rules: Rules) -> str | None:
    """Return the rule by which a tier is given up after these attempts on it."""
    last = [attempt.category for attempt in attempts[-rules.repeat :]]
    if len(last) == rules.repeat and len(set(last)) == 1:
        return "repeat"
    if attempts[-1].failures > rules.failures:
        return "failures"
    if len(attempts) >= budget:
        return "budget"
    if len(attempts) >= rules.friction and not _fell(attempts) and _rubs(attempts, rules):
        return "friction"
    return None


def _fell(attempts: Sequence[Attempt]) -> bool:
    """True if the last attempt has fewer failures than the one before."""
    return len(attempts) > 1 and attempts[-1].failures < attempts[-2].failures


def _rubs(attempts: Sequence[Attempt], rules: Rules) -> bool:
    """True if a category came back, failures did not fall, or categories are many."""
    categories = [attempt.category for attempt in attempts]
    runs = [category for at, category in enumerate(categories) if at == 0 or categories[at - 1] != category]
    window = attempts[-rules.stalled :]
    stalled = len(window) == rules.stalled and window[-1].failures >= window[0].failures
    return len(set(runs)) < len(runs) or stalled or len(set(categories)) > rules.categories
