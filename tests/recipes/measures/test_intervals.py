"""Intervals cover what their definitions say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.measures import intervals


@given(st.integers(1, 500), st.data())
def test_the_ends_of_wilsons_interval_are_the_shares_that_a_score_test_just_does_not_reject(
    count: int, data: st.DataObject
) -> None:
    successes = data.draw(st.integers(0, count))
    share, ends = successes / count, intervals.wilson(successes, count)
    for end in ends:
        assert (share - end) ** 2 == pytest.approx(intervals.Z**2 * end * (1 - end) / count, abs=1e-12)
    assert ends[0] <= share + 1e-12 and share <= ends[1] + 1e-12


def test_an_interval_is_of_ten_thousand_draws_of_prompts() -> None:
    values = np.random.RandomState(1).rand(30)
    means = values[np.random.RandomState(42).randint(0, 30, size=(10_000, 30))].mean(axis=1)
    share = 1.875390027822054  # scipy: 100 * norm.cdf(-sqrt(30 / 29) * t.ppf(0.975, 29))
    low, high = np.percentile(means, [share, 100 - share])
    assert intervals.of_means([values, values * 2]) == [
        pytest.approx((low, high), abs=1e-9),
        pytest.approx((2 * low, 2 * high), abs=1e-9),
    ]


def test_of_nothing_a_proportion_may_be_anything() -> None:
    assert intervals.wilson(0, 0) == (0.0, 1.0)


def test_the_ends_of_a_proportion_that_is_all_or_nothing_are_exact() -> None:
    assert intervals.wilson(0, 5)[0] == 0.0
    assert intervals.wilson(5, 5)[1] == 1.0


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706204736), (2, 4.302652730), (3, 3.182446305), (10, 2.228138852), (29, 2.045229642)],
)
def test_the_quantiles_of_student_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert intervals.student(freedom) == pytest.approx(quantile, rel=1e-9)


def test_columns_of_one_length_are_drawn_from_with_the_same_rows() -> None:
    left, right, short = np.arange(7.0), np.arange(7.0)[::-1].copy(), np.arange(3.0)
    drawn = intervals.draws([left, short, right])
    assert drawn[0] + drawn[2] == pytest.approx(np.full(intervals.DRAWS, 6.0))
    assert drawn[1].max() <= 2.0


def test_blocks_of_draws_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    column = np.random.RandomState(1).rand(20)
    (whole,) = intervals.draws([column])
    monkeypatch.setattr(intervals, "BLOCK", 20 * 999)
    (pieces,) = intervals.draws([column])
    assert pieces == pytest.approx(whole, abs=1e-12)
