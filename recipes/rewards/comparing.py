"""Rewards `exact`, `numeric` and `regex`: an answer as it is expected. Step `score` compares in the same ways."""

from collections.abc import Mapping
from typing import Any

from batchyard.comparing import numbers
from batchyard.comparing.values import comparable, matches, same, shortest
from batchyard.recipes import reward

GROUND_TRUTH = ("reward_model.ground_truth",)


@reward("exact", columns=GROUND_TRUTH)
def exact(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """1 if the answer is the ground truth: numbers by value, other texts stripped."""
    return {"score": float(same(solution_str, ground_truth)), "pred": comparable(solution_str)}


@reward("numeric", columns=GROUND_TRUTH)
def numeric(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """1 if the last number of the answer has the value of the ground truth's last number."""
    number = numbers.last(solution_str)
    return {
        "score": float(matches("numeric", solution_str, ground_truth)),
        "pred": None if number is None else shortest(number),
    }


@reward("regex", columns=GROUND_TRUTH)
def regex(data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None) -> float:
    """1 if the ground truth, a regular expression of RE2, matches somewhere in the answer."""
    return float(matches("regex", solution_str, ground_truth))
