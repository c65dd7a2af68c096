"""Expressions of `expect` and `pass` are read, or refused with the place and the nearest name."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.experiment.expressions import Operand, parse
from recipes.experiment.recipe import Experiment, check

VARIANTS = ["small", "big", "big.v2"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("big.mean@8 > small.mean@8", ["big.mean@8 > small.mean@8"]),
        ("big.pass^8>=.25", ["big.pass^8 >= 0.25"]),
        ("big.acc/mean@8 < 1e-3", ["big.acc/mean@8 < 0.001"]),
        ("big.v2.mean@8 <= big.mean@8", ["big.v2.mean@8 <= big.mean@8"]),
        ("big.data-x/f1.score > -0.5", ["big.data-x/f1.score > -0.5"]),
        ("mean@8 > 0.5", ["small.mean@8 > 0.5", "big.mean@8 > 0.5", "big.v2.mean@8 > 0.5"]),
        ("mean@8 > small.mean@8", ["big.mean@8 > small.mean@8", "big.v2.mean@8 > small.mean@8"]),
    ],
)
def test_an_expression_speaks_of_a_variant_or_of_each(text: str, written: list[str]) -> None:
    assert [str(expression) for expression in parse(text, VARIANTS)] == written


def test_the_longest_variant_that_fits_is_meant() -> None:
    [expression] = parse("big.v2.mean@8 > 0", VARIANTS)
    assert expression.left == Operand("big.v2", "mean@8")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bgi.mean@8 > 0.5", "column 1: no variant is named 'bgi'; did you mean 'big'?"),
        ("big.mean@8 > smal.mean@8", "column 14: no variant is named 'smal'; did you mean 'small'?"),
        ("big.mean@8 > mean@8", "column 14: 'mean@8' is neither a number nor '<variant>.<metric>'"),
        ("big.mean@8", "column 11: an operator is missing in 'big.mean@8'"),
        ("big.mean@8 == 1", "column 12: '==' is no operator; the operators are >, >=, <, <="),
        ("0 < big.mean@8 < 1", "column 16: a second operator"),
        ("> 0.5", "column 1: a metric is missing"),
        ("big.mean@8 >", "column 13: a metric is missing"),
        ("big.mean@8 > nan", "column 14: 'nan' is no finite number"),
        ("", "column 1: an operator is missing"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse(text, VARIANTS)
    assert str(refused.value).startswith(says)
    variants: dict[str, Any] = {name: {} for name in VARIANTS}
    with pytest.raises(ValueError) as refused:
        check(Experiment(recipe="rollout", variants=variants, expect=["big.mean@8 > 0", text]))
    assert str(refused.value).startswith(f"expect.1: {says}")
