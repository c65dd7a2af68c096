"""Reward `json-fields`: an answer that is a JSON object, field by field."""

import json
import re
from typing import Any

from batchyard.comparing.values import equal
from batchyard.recipes import reward
from recipes.rewards.comparing import GROUND_TRUTH

_FENCE = re.compile(r"```(?:json)?[^\S\n]*\n(.*?)```", re.DOTALL)


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
    same = {name: answer is not None and name in answer and equal(answer[name], expected[name]) for name in expected}
    score = sum(same.values()) / len(same)
    return {"score": score, "acc": float(all(same.values())), **{f"field {name}": float(v) for name, v in same.items()}}
