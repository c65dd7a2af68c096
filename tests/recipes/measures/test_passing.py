"""Measures of right and wrong samples have the values of their definitions."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.measures import verl
from recipes.measures.tally import majority, pass_all, pass_at


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_choices_with_a_right_sample(number: int, data: st.DataObject) -> None:
    correct, size = data.draw(st.integers(0, number)), data.draw(st.integers(1, number))
    choices = list(combinations([True] * correct + [False] * (number - correct), size))
    assert pass_at(number, correct, size) == pytest.approx(np.mean([any(c) for c in choices]), abs=1e-12)
    assert pass_all(number, correct, size) == pytest.approx(np.mean([all(c) for c in choices]), abs=1e-12)


@given(st.integers(1, 1024), st.data())
def test_pass_at_k_is_human_evals(number: int, data: st.DataObject) -> None:
    correct, size = data.draw(st.integers(0, number)), data.draw(st.integers(1, number))
    # A transcription of HumanEval's `estimate_pass_at_k`.
    wrong = number - correct
    expected = 1.0 if wrong < size else 1.0 - np.prod(1.0 - size / np.arange(wrong + 1, number + 1))
    assert pass_at(number, correct, size) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("samples", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_k_are_the_powers_of_two_and_the_number_of_samples(samples: int, expected: list[int]) -> None:
    assert verl.sizes(samples) == expected[1:]


@pytest.mark.parametrize(
    ("preds", "scores", "expected"),
    [
        (["7", "7", "8"], [1.0, 1.0, 0.0], 1.0),
        (["7", "8"], [1.0, 0.0], 0.5),
        ([None, None, "8"], [0.0, 0.0, 1.0], 1.0),
        ([None, None], [0.0, 0.0], 0.0),
        (["7", "7", "8", "8"], [1.0, 1.0, 0.0, 0.0], 0.5),
    ],
)
def test_the_majority_is_the_most_frequent_prediction(preds: Any, scores: list[float], expected: float) -> None:
    assert majority(preds, scores) == expected


def test_more_choices_than_wrong_samples_have_a_right_one() -> None:
    assert pass_at(10, 3, 8) == 1.0
    assert pass_all(10, 3, 4) == 0.0
