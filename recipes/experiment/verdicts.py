"""What becomes of an experiment's expectations: held, not held, or not decidable."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from batchyard.wording import nearest
from recipes.experiment.expressions import Expression, Operand
from recipes.experiment.variants import Variant, differences, estimates, is_paired
from recipes.measures import paired

HELD, NOT_HELD, NOT_DECIDABLE = "held", "not held", "not decidable"


def outcome(
    said: tuple[str, str],
    verdict: str,
    n: int | None = None,
    difference: float | None = None,
    interval: tuple[float, float] | None = None,
    p: float | None = None,
    reason: str | None = None,
) -> dict[str, Any]:
    """Return what became of an expression, as comparison.json has it.

    `said`: the text, and the statement about one variant. `n`: items that it was decided by.
    """
    words = f"{verdict} at n = {n}" if verdict == NOT_DECIDABLE else verdict
    return {
        **{"text": said[0], "expression": said[1], "verdict": verdict},
        "words": words if reason is None else f"{verdict}: {reason}",
        **{"n": n, "difference": difference, "interval": interval and list(interval), "p": p, "reason": reason},
    }


def judge(expression: Expression, variants: Mapping[str, Variant]) -> dict[str, Any]:
    """Return what becomes of an expression."""
    said = expression.text, str(expression)
    left, right = expression.left, expression.right
    operands = [left, right] if isinstance(right, Operand) else [left]
    if reason := next(filter(None, (_missing(operand, variants) for operand in operands)), None):
        return outcome(said, NOT_DECIDABLE, reason=reason)
    variant = variants[left.variant]
    if not isinstance(right, Operand):
        estimate = estimates(variant, [left.metric])[left.metric]
        interval = None if estimate.interval is None else (estimate.interval[0] - right, estimate.interval[1] - right)
        verdict = _verdict(expression.operator, interval, None)
        return outcome(said, verdict, estimate.n, estimate.mean - right, interval)
    if not is_paired(variant, variants[right.variant]):
        reason = f"'{left.variant}' and '{right.variant}' have different inputs"
        return outcome(said, NOT_DECIDABLE, reason=reason)
    [found] = differences([(variant, left.metric, variants[right.variant], right.metric)])
    verdict = _verdict(expression.operator, found.interval, found.p)
    mean = found.mean if found.n else None
    return outcome(said, verdict, found.n, mean, found.interval, found.p)


def _verdict(operator: str, interval: tuple[float, float] | None, p: float | None) -> str:
    if interval == (0, 0) and operator in (">=", "<="):
        return HELD
    side = paired.side(interval, p)
    if side == 0:
        return NOT_DECIDABLE
    return HELD if (side > 0) == (operator in (">", ">=")) else NOT_HELD


def _missing(operand: Operand, variants: Mapping[str, Variant]) -> str | None:
    """Return why a metric decides nothing, None if it has values by item."""
    variant, metric = variants[operand.variant], operand.metric
    if not variant.children:
        return f"no child of '{variant.name}' has completed"
    if metric in variant.as_a_whole and metric not in variant.by_item:
        return f"'{metric}' has no values by item"
    if metric in variant.by_item and np.isfinite(variant.column(metric)).any():
        return None
    near = nearest(metric, [*variant.by_item, *variant.as_a_whole])
    return f"no metric '{metric}' of '{variant.name}'" + (f"; did you mean '{near}'?" if near else "")
