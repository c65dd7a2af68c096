"""Rewards `gsm8k` and `gsm8k-flexible`, as verl's `verl/utils/reward_score/gsm8k.py` (0.9.1) defines both methods."""

import re
from typing import Any

from batchyard.comparing import numbers
from batchyard.comparing.values import comparable
from batchyard.recipes import reward

TAIL = 300
"""The last characters of an answer, where the result is looked for."""
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"-?[0-9.,]+")


def strict_answer(text: str) -> str | None:
    """Return the last number after `#### `, without commas; None without one."""
    found = _STRICT.findall(text[-TAIL:])
    return found[-1].replace(",", "") if found else None


def flexible_answer(text: str) -> str | None:
    """Return the last number but ".", with commas; the first if all are; None without one."""
    found = _FLEXIBLE.findall(text[-TAIL:])
    return next((number for number in reversed(found) if number != "."), found[0] if found else None)


def _scored(answer: str | None, ground_truth: Any) -> dict[str, Any]:
    if isinstance(ground_truth, str):  # texts as verl compares them
        right = answer == ground_truth
    else:
        right = answer is not None and numbers.last(answer) == numbers.last(comparable(ground_truth))
    return {"score": float(right), "pred": answer}


@reward("gsm8k", data_sources=("openai/gsm8k",), columns=("reward_model.ground_truth",))
def gsm8k(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> dict[str, Any]:
    """1 if the answer's number after `#### ` is the ground truth as text."""
    return _scored(strict_answer(solution_str), ground_truth)


@reward("gsm8k-flexible", columns=("reward_model.ground_truth",))
def gsm8k_flexible(data_source: str, solution_str: str, ground_truth: Any, *_: Any) -> dict[str, Any]:
    """1 if the answer's last number is the ground truth as text."""
    return _scored(flexible_answer(solution_str), ground_truth)
