"""The bounds of a filter: its lemma, exact probabilities over all small tables, and the guarantee over samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

from batchyard.comparing.shares import at_most
from recipes.cascade import bounds
from tests.recipes.cascade import filtered
from tests.recipes.cascade.simulated import KINDS

RISK = 0.3


def binomial(most: int, draws: int, share: float) -> float:
    """Return the probability of at most so many successes, as the limit of an endless population."""
    population = 10**9
    return at_most(most, population, round(share * population), draws)


@pytest.mark.parametrize("rows", [5, 12, 23])
def test_a_sample_without_replacement_has_a_lighter_lower_tail_than_one_with_it(rows: int) -> None:
    for marked in range(1, rows):
        for draws in range(1, rows + 1):
            for most in range(int(draws * marked / rows - 1) + 1 if draws * marked >= rows else 0):
                assert at_most(most, rows, marked, draws) <= binomial(most, draws, marked / rows) + 1e-6


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("wanted", [3, 40, 300])
def test_the_errors_that_are_allowed_are_the_most_of_the_binomial_distribution(share: float, wanted: int) -> None:
    lost = max(
        (few for few in range(wanted) if binomial(few, wanted, share) <= RISK and few <= wanted * share - 1), default=-1
    )
    assert bounds.most_lost(wanted, share, RISK) == lost
    extra = max(
        (
            few
            for few in range(wanted)
            if binomial(few, wanted + few, share) <= RISK and few <= (wanted + few) * share - 1
        ),
        default=-1,
    )
    assert bounds.most_unwanted(wanted, share, RISK) == extra


def tables(rows: int, sample: int) -> Iterator[tuple[list[bool], list[frozenset[int]]]]:
    """Yield which rows are wanted, in every way, and all samples. Scores rise with a row's number."""
    samples = [frozenset(chosen) for chosen in combinations(range(rows), sample)]
    for bits in range(1, 1 << rows):
        yield [bool(bits >> row & 1) for row in range(rows)], samples


def misses(order: list[int], chosen: frozenset[int], errors: list[bool], most: int, budget: float) -> bool:
    """True if a cut that takes the first rows of an order, with the errors that it may have, is too low."""
    seen = left = 0
    for row in order:
        seen, left = seen + (errors[row] and row in chosen), left + (errors[row] and row not in chosen)
        if seen <= most and left > budget + 1e-9:
            return True
    return False


# Those that are exhaustive show for larger tables what those of 8 rows show.
@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "sample", "precision", "recall"),
    [
        (8, 4, 0.4, 0.4),
        pytest.param(9, 5, 0.5, 0.6, marks=pytest.mark.exhaustive),
        pytest.param(9, 6, 0.6, 0.5, marks=pytest.mark.exhaustive),
    ],
)
def test_no_table_misses_a_target_more_often_than_its_risk_allows(
    rows: int, sample: int, precision: float, recall: float
) -> None:
    shares = bounds.shares(precision, recall)
    worst = [0.0, 0.0]
    for wanted, samples in tables(rows, sample):
        total, unwanted = sum(wanted), [not each for each in wanted]
        missed = [0, 0]
        for chosen in samples:
            found = sum(wanted[row] for row in chosen)
            extra, lost = (
                most(found, share, RISK)
                for most, share in zip((bounds.most_unwanted, bounds.most_lost), shares, strict=True)
            )
            budget = recall * total * (1 - precision) / precision
            missed[0] += misses([*reversed(range(rows))], chosen, unwanted, extra, budget)
            missed[1] += misses([*range(rows)], chosen, wanted, lost, (1 - recall) * total)
        worst = [max(before, now / len(samples)) for before, now in zip(worst, missed, strict=True)]
    assert 0 < max(worst) <= RISK, "something is certified, and it holds"


def test_looks_end_at_half_of_the_rows_and_too_few_rows_have_none() -> None:
    assert bounds.sample_sizes(20_000, 0.1, 0.025) == [123, 370, 1111, 3333, 10_000]
    assert len(bounds.sample_sizes(500, 0.1, 0.025)) == 2
    assert bounds.sample_sizes(60, 0.1, 0.025) == bounds.sample_sizes(0, 0.1, 0.025) == []


def test_where_both_cuts_are_certified_the_small_models_own_answer_decides() -> None:
    import numpy as np

    scores = np.linspace(0, 1, 101)
    looks = [bounds.Look(50, 0)]
    crossing = [bounds.Tail(scores, [(1, 0.2)], looks), bounds.Tail(np.sort(-scores), [(2, -0.9)], looks)]
    decision = bounds.decide(crossing, 101, 50)
    assert (decision.upper, decision.lower) == (0.5, 0.9)
    assert int(decision.accepts(scores).sum()) + int(decision.rejects(scores).sum()) == 101
    apart = [bounds.Tail(scores, [(1, 0.8)], looks), bounds.Tail(np.sort(-scores), [(2, -0.3)], looks)]
    decision = bounds.decide(apart, 101, 50)
    assert (decision.upper, decision.lower) == (0.8, 0.3)


# Those that are exhaustive show for equal targets what different ones show for each kind.
@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "precision", "recall"),
    [
        pytest.param(
            kind, precision, 0.9, marks=[pytest.mark.exhaustive] * (precision == 0.9 and kind != "adversarial")
        )
        for kind in KINDS
        for precision in (0.9, 0.95)
    ],
)
def test_both_targets_are_missed_in_no_more_than_5_percent_of_runs(kind: str, precision: float, recall: float) -> None:
    runs = filtered.runs(kind, 2000, precision, recall, 60)
    assert sum(run.is_missed for _, run in runs) <= 8, "of 60 runs more than 8 miss with probability 0.002 if 5 % do"


def test_an_easy_filter_asks_about_few_rows_and_a_useless_one_about_no_more_than_all() -> None:
    for _, run in filtered.runs("easy", 20_000, 0.9, 0.9, 10):
        assert run.large < 0.2 * 20_000
    for _, run in filtered.runs("useless", 2000, 0.95, 0.95, 10):
        assert run.sampled <= 1000 and run.large <= 2000
