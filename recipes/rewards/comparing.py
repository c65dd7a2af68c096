"""Rewards `exact`, `numeric` and `regex`: an answer as it is expected. Step `score` compares in the same ways."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

from batchyard.recipes import reward
from recipes.patterns import compiled
from recipes.rewards import numbers

GROUND_TRUTH = ("reward_model.ground_truth",)

PLAIN_DIGITS = 20
"""Numbers with more zeros than that are written with an exponent."""


def shortest(number: Decimal) -> str:
    """Return one text for all numbers of this value, as people write it: 950 for 950.0 and 9.5E+2."""
    if not number:
        return "0"
    context = Context(prec=len(number.as_tuple().digits), Emin=MIN_EMIN, Emax=MAX_EMAX)
    normal = number.normalize(context)
    return f"{normal:f}" if abs(normal.adjusted()) < PLAIN_DIGITS else str(normal)


def matches(method: str, answer: str, expected: str) -> bool:
    """Return True if the answer is as expected. Raises InvalidPattern if the expected text is none."""
    if method == "numeric":
        value = numbers.last(expected)
        return value is not None and numbers.last(answer) == value
    if method == "regex":
        return compiled(expected).search(answer) is not None
    return answer.strip() == expected.strip()


@reward("exact", columns=GROUND_TRUTH)
def exact(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """1 if the answer is the ground truth, both stripped."""
    answer = solution_str.strip()
    return {"score": float(matches("exact", answer, str(ground_truth))), "pred": answer}


@reward("numeric", columns=GROUND_TRUTH)
def numeric(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """1 if the last number of the answer has the value of the ground truth's last number."""
    number = numbers.last(solution_str)
    return {
        "score": float(matches("numeric", solution_str, str(ground_truth))),
        "pred": None if number is None else shortest(number),
    }


@reward("regex", columns=GROUND_TRUTH)
def regex(data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None) -> float:
    """1 if the ground truth, a regular expression of RE2, matches somewhere in the answer."""
    return float(matches("regex", solution_str, str(ground_truth)))
