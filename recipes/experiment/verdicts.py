"""What becomes of an experiment's expectations: held, not held, or not decidable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchyard.wording import nearest
from recipes.experiment import statistics
from recipes.experiment.expressions import Expression, Operand
from recipes.experiment.variants import Variant

HELD, NOT_HELD, NOT_DECIDABLE = "held", "not held", "not decidable"


@dataclass(frozen=True)
class ExpectationVerdict:
    """What became of an expression.

    Attributes:
        n: items that it was decided by.
        difference: left side less right side.
        interval: of 95 %, of the difference.
        p: of "the difference is 0", where both sides are metrics.
        reason: why it is not decidable, if not for the interval.
    """

    text: str
    expression: str
    verdict: str
    n: int | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    reason: str | None = None

    @property
    def words(self) -> str:
        if self.reason is not None:
            return f"{self.verdict}: {self.reason}"
        return f"{self.verdict} at n = {self.n}" if self.verdict == NOT_DECIDABLE else self.verdict

    def document(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "expression": self.expression,
            "verdict": self.verdict,
            "words": self.words,
            "n": self.n,
            "difference": self.difference,
            "interval": None if self.interval is None else list(self.interval),
            "p": self.p,
            "reason": self.reason,
        }


def judge(expression: Expression, variants: Mapping[str, Variant]) -> ExpectationVerdict:
    """Return what becomes of an expression."""
    left, right = expression.left, expression.right
    operands = [left, right] if isinstance(right, Operand) else [left]
    if reason := next(filter(None, (_missing(operand, variants) for operand in operands)), None):
        return ExpectationVerdict(expression.text, str(expression), NOT_DECIDABLE, reason=reason)
    if isinstance(right, Operand):
        return _between(expression, left, variants[left.variant], right, variants[right.variant])
    estimate = statistics.estimates(variants[left.variant], [left.metric])[left.metric]
    interval = None if estimate.interval is None else (estimate.interval[0] - right, estimate.interval[1] - right)
    verdict = _verdict(expression.operator, interval, None)
    return ExpectationVerdict(expression.text, str(expression), verdict, estimate.n, estimate.mean - right, interval)


def _between(
    expression: Expression, left: Operand, left_variant: Variant, right: Operand, right_variant: Variant
) -> ExpectationVerdict:
    if not statistics.is_paired(left_variant, right_variant):
        reason = f"'{left.variant}' and '{right.variant}' have different inputs"
        return ExpectationVerdict(expression.text, str(expression), NOT_DECIDABLE, reason=reason)
    [difference] = statistics.differences([(left_variant, left.metric, right_variant, right.metric)])
    return ExpectationVerdict(
        expression.text,
        str(expression),
        _verdict(expression.operator, difference.interval, difference.p),
        difference.n,
        difference.mean if difference.n else None,
        difference.interval,
        difference.p,
    )


def _verdict(operator: str, interval: tuple[float, float] | None, p: float | None) -> str:
    if interval == (0, 0) and operator in (">=", "<="):
        return HELD
    side = statistics.side(interval, p)
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
