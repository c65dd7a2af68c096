"""Recipe refine: what follows an attempt that was not accepted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from recipes.refine import policy
from recipes.refine.policy import Attempt, Decision, PolicyOptions


def decide(attempts: Sequence[Attempt], budgets: Sequence[int] = (4, 6, 6), **rules: int) -> Decision:
    return policy.decide(attempts, PolicyOptions(**rules), budgets)


def history(*attempts: str, tier: int = 0) -> list[Attempt]:
    """Return attempts written as `<category><failures><text>`, such as `a1x`; text `-` is no answer."""
    return [Attempt(tier, text[0], int(text[1]), None if text[2] == "-" else text[2]) for text in attempts]


@pytest.mark.parametrize(
    ("attempts", "action", "reason"),
    [
        (["a1x"], "retry", None),
        (["a1x", "b1x"], "retry", None),
        (["a1x", "b1x", "c1x"], "stuck", "no_change"),
        (["a1x", "b1y", "c1x"], "retry", None),
        (["a1-", "b1-", "c1-"], "retry", None),
        (["a1x", "a1y"], "escalate", "repeat"),
        (["a1x", "b1y", "a1z"], "retry", None),
        (["a3x"], "retry", None),
        (["a4x"], "escalate", "failures"),
        (["a1x", "b1y", "a1z", "b1w"], "escalate", "budget"),
    ],
)
def test_on_the_first_tier(attempts: list[str], action: str, reason: str | None) -> None:
    assert decide(history(*attempts)) == Decision(action, reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempts", "action", "reason"),
    [
        (["a3u", "b3v", "c3w", "a2x"], "retry", None),  # failures fell
        (["a1u", "b1v", "c1w", "a1x"], "escalate", "friction"),  # a category came back
        (["a2u", "b1v", "c2w", "d2x"], "escalate", "friction"),  # failures did not fall over four attempts
        (["a3u", "b1v", "c1w", "b1x", "c1y"], "escalate", "friction"),  # a category came back
        (["a3u", "b2v", "c1w", "d1x"], "escalate", "friction"),  # more than three categories
        (["a3u", "b2v", "c1w"], "retry", None),  # not after four attempts yet
        (["a3u", "b2v", "c3w", "a2x", "b3y", "c2z"], "escalate", "budget"),
    ],
)
def test_on_a_later_tier_there_are_six_attempts_if_they_make_progress(
    attempts: list[str], action: str, reason: str | None
) -> None:
    assert decide(history(*attempts, tier=1)) == Decision(action, reason)  # type: ignore[arg-type]


def test_three_categories_of_falling_failures_are_no_friction() -> None:
    assert decide(history("a3u", "b2v", "c2w", "c1x", tier=1), repeat=3).action == "retry"
    assert decide(history("a3u", "b3v", "c3w", "c2x", "c2y", tier=1), repeat=4).action == "retry"


def test_what_ends_the_last_tier_is_the_reason_why_an_item_is_stuck() -> None:
    attempts = history("a1x", "a1y")
    assert decide(attempts) == Decision("escalate", "repeat")
    assert decide(attempts, (4,)) == Decision("stuck", "repeat")
    assert decide(history("a1x", tier=2), (1, 1, 1)) == Decision("stuck", "budget")


def test_a_tier_begins_without_the_attempts_before_it() -> None:
    attempts = [*history("b1x", "a1y", "a1z"), *history("a1v", tier=1)]
    assert decide(attempts) == Decision("retry")


def test_an_answer_that_no_tier_changes_is_for_a_person() -> None:
    attempts = [*history("a1x", "a1x"), *history("a1x", tier=1)]
    assert decide(attempts) == Decision("stuck", "no_change")


def test_the_numbers_are_the_policys() -> None:
    attempts = history("a1x", "b1y", "c1z")
    assert decide(attempts, (3, 6)).reason == "budget"
    assert decide(attempts, friction=3, categories=2).reason == "friction"
    assert decide(history("a1x", "b1x"), unchanged=2).reason == "no_change"
    assert decide(history("a1x"), repeat=1).reason == "repeat"
    assert decide(history("a3x"), failures=2).reason == "failures"


# Against the rules as they are written down


def transcribed(attempts: list[Attempt], budgets: tuple[int, ...]) -> tuple[str, str | None]:
    """The rules with their default numbers, word by word, of indices and loops alone."""
    n = len(attempts)
    # stuck no_change: the last 3 texts are equal
    if n >= 3:
        a, b, c = attempts[n - 3].text, attempts[n - 2].text, attempts[n - 1].text
        if a is not None and a == b and b == c:
            return "stuck", "no_change"
    tier, mine = attempts[n - 1].tier, []
    for attempt in attempts:
        if attempt.tier == tier:
            mine.append(attempt)
    m, reason = len(mine), None
    # repeat: the last 2 failed with one category
    if m >= 2 and mine[m - 1].category == mine[m - 2].category:
        reason = "repeat"
    # failures: more than 3
    elif mine[m - 1].failures > 3:
        reason = "failures"
    # budget: 4 attempts, on later tiers 6
    elif m >= (4 if tier == 0 else 6):
        reason = "budget"
    # friction, after 4 attempts unless failures fell
    elif m >= 4 and not mine[m - 1].failures < mine[m - 2].failures:
        for i in range(m):
            for j in range(i + 1, m):
                for k in range(j + 1, m):
                    # a category went and came back
                    if mine[i].category == mine[k].category != mine[j].category:
                        reason = "friction"
        # failures did not fall over 4
        if not mine[m - 1].failures < mine[m - 4].failures:
            reason = "friction"
        # over 3 categories
        seen: list[str] = []
        for attempt in mine:
            if attempt.category not in seen:
                seen.append(attempt.category)
        if len(seen) > 3:
            reason = "friction"
    if reason is None:
        return "retry", None
    # escalating from the last tier is stuck with that reason
    return ("stuck" if tier == len(budgets) - 1 else "escalate"), reason


ALPHABET = [("a", 1, "x"), ("b", 1, "x"), ("a", 2, "y"), ("c", 2, "z"), ("d", 4, None)]
"""Four categories; one, two or four failures; three texts and none. A history has these on two tiers."""


def histories(longest: int) -> Iterator[list[Attempt]]:
    first, second = ([Attempt(tier, *symbol) for symbol in ALPHABET] for tier in (0, 1))
    for length in range(1, longest + 1):
        for on_second in range(length + 1):
            tiers = [first] * (length - on_second) + [second] * on_second
            yield from map(list, itertools.product(*tiers))


def test_decide_equals_a_transcription_of_its_rules_on_all_histories_up_to_length_6() -> None:
    budgets = (4, 6)
    outcomes = Counter[tuple[str, str | None]]()
    for attempts in histories(6):
        decision = decide(attempts, budgets)
        expected = transcribed(attempts, budgets)
        outcomes[expected] += 1
        assert (decision.action, decision.reason) == expected, attempts
    assert outcomes.total() == sum(5**length * (length + 1) for length in range(1, 7))
    reasons = {"repeat", "failures", "budget"}
    assert set(outcomes) == {("retry", None), ("stuck", "no_change"), ("stuck", "friction")} | {
        (action, reason) for action in ("escalate", "stuck") for reason in reasons
    }
