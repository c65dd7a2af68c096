"""What is said of a metric of one variant, and of its difference from another's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from recipes.experiment.variants import differences, estimates, is_paired
from recipes.measures.paired import LEVEL, holm, side


class Column:
    """A variant of one metric, with a value for each item; NaN is none."""

    def __init__(self, *values: float, inputs: frozenset[str] = frozenset({"a"})) -> None:
        self.values, self.inputs = np.array(values, float), inputs

    def column(self, metric: str) -> np.ndarray:
        return self.values


@pytest.mark.parametrize(
    ("interval", "p", "expected"),
    [
        (None, 0.001, 0),
        ((0.1, 0.2), None, 1),
        ((0.1, 0.2), 0.049, 1),
        ((0.1, 0.2), 0.05, 0),
        ((-0.2, -0.1), 0.01, -1),
        ((-0.1, 0.1), 0.01, 0),
        ((0.0, 0.1), 0.01, 0),
    ],
)
def test_a_difference_has_a_side_if_both_the_interval_and_p_say_so(
    interval: tuple[float, float] | None, p: float | None, expected: int
) -> None:
    assert side(interval, p) == expected


def test_items_without_a_value_do_not_count() -> None:
    (estimate,) = estimates(Column(1, math.nan, 0, 1), ["score"]).values()  # type: ignore[arg-type]
    assert (estimate.n, estimate.mean) == (3, pytest.approx(2 / 3))
    assert estimate.interval is not None and 0 <= estimate.interval[0] < 2 / 3 < estimate.interval[1] <= 1
    assert estimates(Column(math.nan), ["score"]) == {}  # type: ignore[arg-type]


def test_a_difference_is_over_the_items_that_both_have() -> None:
    left, right = Column(1, 2, math.nan, 4), Column(0, 1, 1)
    (difference,) = differences([(left, "x", right, "x")])  # type: ignore[list-item]
    assert (difference.n, difference.mean) == (2, 1.0)


def test_rows_of_one_input_are_paired_and_unknown_ones_may_be() -> None:
    assert is_paired(Column(), Column())  # type: ignore[arg-type]
    assert is_paired(Column(inputs=frozenset()), Column())  # type: ignore[arg-type]
    assert not is_paired(Column(inputs=frozenset({"b"})), Column())  # type: ignore[arg-type]


def test_the_more_differences_are_tested_the_smaller_each_p_has_to_be() -> None:
    assert holm([0.01, 0.04, None]) == [pytest.approx(0.02), pytest.approx(0.04), None]
    assert LEVEL == 0.05
