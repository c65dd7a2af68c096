"""Cohen's kappa, by the tables of its sources."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.measures.paired import kappa


def verdicts(table: list[list[int]], labels: list[float]) -> tuple[np.ndarray, np.ndarray]:
    one = [labels[row] for row, line in enumerate(table) for count in line for _ in range(count)]
    other = [labels[column] for line in table for column, count in enumerate(line) for _ in range(count)]
    return np.asarray(one), np.asarray(other)


def test_of_nominal_verdicts_it_is_agreement_beyond_chance() -> None:
    one, other = verdicts([[20, 5], [10, 15]], [0.0, 1.0])  # 0.7 agree, 0.5 by chance
    assert kappa(one, other) == pytest.approx(0.4)


def test_of_marks_a_small_disagreement_weighs_less_than_a_large_one() -> None:
    near, far = np.asarray([0, 0.5, 1, 0.5]), np.asarray([0, 0.5, 1, 1])
    scale = [0.0, 0.5, 1.0]
    gentle, strict = kappa(near, far, scale), kappa(near, far)
    assert gentle is not None and strict is not None and gentle > strict
    assert gentle == pytest.approx(1 - 0.25 / 4 / (np.mean([(a - b) ** 2 for a in near for b in far])))


def test_full_agreement_is_1_and_that_on_one_thing_only_says_nothing() -> None:
    assert kappa(np.asarray([0.0, 1.0]), np.asarray([0.0, 1.0])) == 1
    assert kappa(np.ones(5), np.ones(5)) is None
