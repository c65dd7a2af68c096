"""Intervals of means cover the true mean, and a paired comparison finds a true difference: with seeded data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from recipes.measures import estimates, intervals, paired
from recipes.measures.estimates import Clusters
from recipes.measures.paired import Values

RUNS = 400
Draw = Callable[[np.random.Generator], tuple[Values, Clusters | None]]


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw 500 times, which widens no interval: 400 evaluations take seconds then."""
    monkeypatch.setattr(intervals, "DRAWS", 500)


def right_or_wrong(random: np.random.Generator) -> tuple[Values, None]:
    """500 questions of the shape of GSM8K, some harder than others, 70 % right in the mean."""
    return (random.random(500) < random.beta(3.5, 1.5, 500)).astype(float), None


def repeated(random: np.random.Generator) -> tuple[Values, None]:
    """200 questions, each asked 4 times: what counts is its mean, as its answers are alike."""
    return random.binomial(4, random.beta(3.5, 1.5, 200)) / 4, None


def clustered(random: np.random.Generator) -> tuple[Values, Clusters]:
    """150 passages with 1 to 6 questions each, which are right together: by the passage, from 0 to 1."""
    sizes = random.integers(1, 7, 150)
    shares = random.beta(1.4, 0.6, 150)
    clusters = np.repeat(np.arange(150), sizes)
    return (random.random(len(clusters)) < shares[clusters]).astype(float), clusters


def coverage(draw: Draw, *, clustered: bool = True) -> float:
    """Return the share of evaluations whose interval covers the true mean."""
    covered = 0
    for seed in range(RUNS):
        values, clusters = draw(np.random.default_rng(seed))
        (estimate,) = estimates.estimates([values], clusters if clustered else None)
        assert estimate.interval is not None
        covered += estimate.interval[0] <= 0.7 <= estimate.interval[1]
    return covered / RUNS


@pytest.mark.long
@pytest.mark.parametrize("draw", [right_or_wrong, repeated, clustered])
@pytest.mark.usefixtures("few_draws")
def test_intervals_cover_the_true_mean_in_93_to_97_of_100_evaluations(draw: Draw) -> None:
    assert 0.93 <= coverage(draw) <= 0.97


@pytest.mark.usefixtures("few_draws")
def test_without_its_clusters_an_interval_of_passages_would_be_too_narrow() -> None:
    assert coverage(clustered, clustered=False) < 0.88


@pytest.mark.usefixtures("few_draws")
def test_a_paired_comparison_finds_five_points_at_500_questions_and_seldom_where_there_are_none() -> None:
    """Two models are right and wrong on much the same questions: 2 % are lost for 7 % that are gained."""
    found = false = 0
    for seed in range(100):
        place = np.random.default_rng(seed).random(500)
        before = (place < 0.70).astype(float)
        better = ((place > 0.02) & (place < 0.77)).astype(float)
        same = ((place > 0.04) & (place < 0.74)).astype(float)
        gained, unchanged = paired.differences([(better, before), (same, before)])
        assert gained.p is not None and unchanged.p is not None and gained.interval is not None
        found += gained.p < 0.05 and gained.interval[0] > 0
        false += unchanged.p < 0.05
    assert found >= 93
    assert false <= 7


def test_of_equal_clusters_of_one_question_the_interval_is_that_of_questions() -> None:
    values = np.random.default_rng(1).random(40)
    (plain,) = estimates.estimates([values])
    (alone,) = estimates.estimates([values], np.arange(40))
    assert alone.mean == plain.mean
    assert alone.interval == pytest.approx(plain.interval)


def test_clusters_that_are_all_right_count_as_one_question_each() -> None:
    (estimate,) = estimates.estimates([np.ones(40)], np.repeat(np.arange(8), 5))
    assert estimate.interval == intervals.wilson(8, 8)
    assert estimates.estimates([np.ones(40)])[0].interval == intervals.wilson(40, 40)


def test_fewer_than_six_clusters_have_no_interval() -> None:
    values, clusters = np.arange(20) % 2 / 1.0, np.repeat(np.arange(5), 4)
    (estimate,) = estimates.estimates([values], clusters)
    assert (estimate.n, estimate.mean, estimate.interval) == (20, 0.5, None)


def test_many_clusters_have_the_normal_interval_which_is_near_that_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values, clusters = clustered(np.random.default_rng(3))
    (drawn,) = estimates.estimates([values], clusters)
    monkeypatch.setattr(intervals, "MOST_DRAWN", 10)
    (normal,) = estimates.estimates([values], clusters)
    assert normal.interval == pytest.approx(drawn.interval, abs=0.01)
