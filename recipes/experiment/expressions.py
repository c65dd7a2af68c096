"""Expressions of `expect` and `pass`: `<variant>.<metric> <operator> <number or variant.metric>`.

Without a variant on the left side, the expression speaks of each variant. Names of metrics may have `@`, `/`, `^`, `-`
and dots; of variants that begin one operand the longest counts.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from batchyard.wording import nearest, quoted, suggestion

OPERATORS = (">", ">=", "<", "<=")
_OPERATOR = re.compile(r"[<>=!~]+")


@dataclass(frozen=True)
class Operand:
    """A metric of a variant."""

    variant: str
    metric: str

    def __str__(self) -> str:
        return f"{self.variant}.{self.metric}"


@dataclass(frozen=True)
class Expression:
    """A statement about one variant: `left operator right`, `right` being a number or a metric of a variant."""

    text: str
    left: Operand
    operator: str
    right: float | Operand

    def __str__(self) -> str:
        right = f"{self.right:g}" if isinstance(self.right, float) else str(self.right)
        return f"{self.left} {self.operator} {right}"


def parse(text: str, variants: Sequence[str]) -> list[Expression]:
    """Return a statement for each variant of an expression. Raises ValueError, with column and nearest variant."""
    operators = list(_OPERATOR.finditer(text))
    if not operators:
        raise ValueError(
            f"column {len(text.rstrip()) + 1}: an operator is missing in {quoted(text)}; write "
            "'<variant>.<metric> > <number or variant.metric>'"
        )
    operator = operators[0]
    if len(operators) > 1:
        raise ValueError(
            f"column {operators[1].start() + 1}: a second operator in {quoted(text)}; write two expressions"
        )
    if operator[0] not in OPERATORS:
        raise ValueError(
            f"column {operator.start() + 1}: {quoted(operator[0])} is no operator; the operators are "
            f"{', '.join(OPERATORS)}, because an interval never shows that two means are equal"
        )
    left = _operand(text, 0, operator.start(), variants)
    right = _number_or_operand(text, operator.end(), len(text), variants)
    if left.variant:
        return [Expression(text, left, operator[0], right)]
    return [
        Expression(text, Operand(variant, left.metric), operator[0], right)
        for variant in variants
        if right != Operand(variant, left.metric)
    ]


def _number_or_operand(text: str, start: int, end: int, variants: Sequence[str]) -> float | Operand:
    written = text[start:end].strip()
    try:
        number = float(written)
    except ValueError:
        operand = _operand(text, start, end, variants)
    else:
        if not math.isfinite(number):
            raise ValueError(f"column {_column(text, start)}: {quoted(written)} is no finite number")
        return number
    if not operand.variant:
        raise ValueError(
            f"column {_column(text, start)}: {quoted(written)} is neither a number nor '<variant>.<metric>'; write "
            f"'{nearest(written, variants) or variants[0]}.{operand.metric}'"
        )
    return operand


def _operand(text: str, start: int, end: int, variants: Sequence[str]) -> Operand:
    """Return the operand between two places. Its variant is "" if it names none."""
    written, column = text[start:end].strip(), _column(text, start)
    if not written:
        raise ValueError(f"column {column}: a metric is missing in {quoted(text)}")
    for variant in sorted(variants, key=len, reverse=True):
        if written.startswith(f"{variant}.") and len(written) > len(variant) + 1:
            return Operand(variant, written[len(variant) + 1 :])
    if "." in written:
        named = written.split(".", 1)[0]
        raise ValueError(f"column {column}: no variant is named {quoted(named)}; {suggestion(named, variants)}")
    return Operand("", written)


def _column(text: str, start: int) -> int:
    return start + len(text[start:]) - len(text[start:].lstrip()) + 1
