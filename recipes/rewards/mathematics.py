"""Reward `math`: the answer's expression equals the ground truth's (Math-Verify, extra `math`).

The targets of extraction are those of verl's `verl/utils/reward_score/math_verify.py`.
"""

from typing import Any

from batchyard.recipes import reward
from recipes.rewards import require_package


@reward("math", columns=("reward_model.ground_truth",))
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
