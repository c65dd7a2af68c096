"""The metrics of a prompt are those of verl."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.measures import verl
from tests.support.verl import PREDS, SCORES, verls


@pytest.mark.long
@given(st.lists(st.tuples(SCORES, st.none() | PREDS), min_size=1, max_size=9))
@settings(max_examples=40, deadline=None)
def test_the_metrics_of_a_prompt_are_verls(samples: list[tuple[float, str | None]]) -> None:
    values, preds = [value for value, _ in samples], [pred for _, pred in samples]
    assert verl.metrics(values, preds) == pytest.approx(verls(values, preds), rel=1e-12, abs=1e-12)


@given(st.lists(st.tuples(SCORES, PREDS), min_size=2, max_size=20))
@settings(max_examples=10, deadline=None)
def test_the_vote_of_a_majority_is_verls_also_among_equals(samples: list[tuple[float, str]]) -> None:
    values, preds = [value for value, _ in samples], [pred for _, pred in samples]
    expected = verls(values, list(preds))
    assert verl.metrics(values, preds) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_verls_seed_of_numpy_is_left_alone() -> None:
    np.random.seed(7)
    expected = np.random.random()
    np.random.seed(7)
    verl.metrics([0.0, 1.0, 1.0], ["a", "b", "b"])
    assert np.random.random() == expected
