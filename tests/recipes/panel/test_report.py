"""How alike texts are, and means of nothing."""

from __future__ import annotations

import pytest

from recipes.panel.report import Mean, distinct_2, diversity


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        ([], None),
        (["alone"], None),
        (["same", "same"], 0.0),
        (["abcd", "abxx"], 0.5),  # two of four characters differ
        (["ab", "abcd"], 0.5),  # by the length of the longer one
        (["aa", "aa", "bb"], pytest.approx(2 / 3)),  # the mean of three pairs
    ],
)
def test_diversity_is_the_mean_distance_of_pairs(texts: list[str], share: float | None) -> None:
    assert diversity(texts) == share


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        ([], None),
        (["word"], None),
        (["a b c"], 1.0),
        (["a b", "A B"], 0.5),  # case does not tell words apart
        (["a b", "b a"], 1.0),  # no pair reaches over the end of a text
    ],
)
def test_distinct_2_is_the_share_of_different_pairs_of_words(texts: list[str], share: float | None) -> None:
    assert distinct_2(texts) == share


def test_a_mean_counts_the_values_that_there_are() -> None:
    mean = Mean()
    assert (mean.value, mean()) == (None, {"mean": None, "n": 0})
    mean.add(1.0, None, 0.0)
    assert mean() == {"mean": 0.5, "n": 2}
