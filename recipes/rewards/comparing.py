"""Rewards that compare an answer with the expected one: `exact`, `numeric`, `regex`, `json-fields` and `math`.

Step `score` compares in the ways of the first three. `math` is Math-Verify (extra `math`), with the targets of
extraction of verl's `verl/utils/reward_score/math_verify.py`.
"""

import json
import re
from typing import Any

from batchyard.comparing import numbers
from batchyard.comparing.values import comparable, equal, matches, same, shortest
from batchyard.recipes import reward
from recipes.rewards import require_package

GROUND_TRUTH = ("reward_model.ground_truth",)
_FENCE = re.compile(r"```(?:json)?[^\S\n]*\n(.*?)```", re.DOTALL)


@reward("exact", columns=GROUND_TRUTH)
def exact(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> dict[str, Any]:
    """1 if the answer is the ground truth: numbers by value, other texts stripped."""
    return {"score": float(same(solution_str, ground_truth)), "pred": comparable(solution_str)}


@reward("numeric", columns=GROUND_TRUTH)
def numeric(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> dict[str, Any]:
    """1 if the last number of the answer has the value of the ground truth's last number."""
    number = numbers.last(solution_str)
    return {
        "score": float(matches("numeric", solution_str, ground_truth)),
        "pred": None if number is None else shortest(number),
    }


@reward("regex", columns=GROUND_TRUTH)
def regex(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> float:
    """1 if the ground truth, a regular expression of RE2, matches somewhere in the answer."""
    return float(matches("regex", solution_str, ground_truth))


def fields_of(text: str) -> dict[str, Any] | None:
    """Return the object of a text, which may stand in a code block; None if there is none."""
    fenced = _FENCE.search(text)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@reward("json-fields", columns=GROUND_TRUTH)
def json_fields(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> dict[str, Any]:
    """The share of the ground truth's fields that the answer has with the same value; right if it has all."""
    expected = ground_truth if isinstance(ground_truth, dict) else fields_of(str(ground_truth))
    if not expected:
        raise ValueError(f"the ground truth is no JSON object with fields: {ground_truth!r}")
    answer = fields_of(solution_str)
    hits = {name: answer is not None and name in answer and equal(answer[name], expected[name]) for name in expected}
    score = sum(hits.values()) / len(hits)
    return {"score": score, "acc": float(all(hits.values())), **{f"field {name}": float(v) for name, v in hits.items()}}


@reward("math", columns=GROUND_TRUTH)
def math(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> dict[str, Any]:
    """1 if the answer's last expression, in LaTeX or plain, equals the ground truth."""
    require_package("math")
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify  # sympy takes a second

    # The library's time limits are signals, which do not work in threads. The caller limits a call.
    gold = parse(f"\\boxed{{{ground_truth}}}", [LatexExtractionConfig()], parsing_timeout=None)
    answer = parse(solution_str, [ExprExtractionConfig(), LatexExtractionConfig()], parsing_timeout=None)
    if not gold:
        raise ValueError(f"the ground truth {ground_truth!r} is no expression")
    correct = any(verify(truth, value, timeout_seconds=None) for truth in gold for value in answer)
    return {"score": float(correct), "pred": str(answer[-1]) if answer else None}
