"""Measures have the values of their definitions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recipes.measures import intervals, passing, verl
from recipes.measures.tally import Sample, SampledPrompt, Tally

SCORES = st.sampled_from([0.0, 1.0]) | st.floats(-2, 2, allow_subnormal=False)
PREDS = st.sampled_from(["1", "2", "3", "a", "a\0", ""])


def bootstrap_metric(data: list[Any], size: int, reduce: list[Callable[[Any], float]]) -> list[tuple[float, float]]:
    """A transcription of verl's `bootstrap_metric` (verl/trainer/ppo/metric_utils.py, 0.9.1)."""
    state = np.random.get_state()
    np.random.seed(42)
    table = np.array(data, dtype=object)
    indices = np.random.choice(len(table), size=(1000, size), replace=True)
    np.random.set_state(state)
    outcomes = [[function(table[row]) for row in indices] for function in reduce]
    return [(float(np.mean(outcome)), float(np.std(outcome))) for outcome in outcomes]


def majority_value(data: list[dict[str, Any]]) -> float:
    """A transcription of verl's `calc_maj_val`."""
    values = defaultdict(list)
    for entry in data:
        values[entry["pred"]].append(entry["val"])
    counts = {pred: len(entries) for pred, entries in values.items()}
    return float(values[max(counts, key=lambda pred: counts[pred])][0])


def verls(values: list[float], preds: list[str | None]) -> dict[str, float]:
    """A transcription of what verl's `process_validation_metrics` does with the samples of one prompt."""
    number = len(values)
    metrics = {f"mean@{number}": float(np.mean(values))}
    if number > 1:
        metrics[f"std@{number}"] = float(np.std(values))
        sizes, size = [], 2
        while size < number:
            sizes.append(size)
            size *= 2
        for size in [*sizes, number]:
            best, worst = bootstrap_metric(values, size, [np.max, np.min])
            metrics |= {f"best@{size}/mean": best[0], f"best@{size}/std": best[1]}
            metrics |= {f"worst@{size}/mean": worst[0], f"worst@{size}/std": worst[1]}
            if all(pred is not None for pred in preds):
                votes = [{"val": value, "pred": pred} for value, pred in zip(values, preds, strict=True)]
                [(mean, deviation)] = bootstrap_metric(votes, size, [majority_value])
                metrics |= {f"maj@{size}/mean": mean, f"maj@{size}/std": deviation}
    return metrics


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


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_choices_with_a_right_sample(number: int, data: st.DataObject) -> None:
    correct, size = data.draw(st.integers(0, number)), data.draw(st.integers(1, number))
    choices = list(combinations([True] * correct + [False] * (number - correct), size))
    assert passing.pass_at(number, correct, size) == pytest.approx(np.mean([any(c) for c in choices]), abs=1e-12)
    assert passing.pass_all(number, correct, size) == pytest.approx(np.mean([all(c) for c in choices]), abs=1e-12)


@given(st.integers(1, 1024), st.data())
def test_pass_at_k_is_human_evals(number: int, data: st.DataObject) -> None:
    correct, size = data.draw(st.integers(0, number)), data.draw(st.integers(1, number))
    # A transcription of HumanEval's `estimate_pass_at_k`.
    wrong = number - correct
    expected = 1.0 if wrong < size else 1.0 - np.prod(1.0 - size / np.arange(wrong + 1, number + 1))
    assert passing.pass_at(number, correct, size) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("samples", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_k_are_the_powers_of_two_and_the_number_of_samples(samples: int, expected: list[int]) -> None:
    assert passing.sizes(samples) == expected
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
    assert passing.majority(preds, scores) == expected


def test_no_answer_means_no_prediction_at_all() -> None:
    assert passing.no_answer([None, None])
    assert not passing.no_answer([None, "7"])


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


def test_very_many_prompts_are_summed_up_and_have_nearly_the_interval_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[Sample(True, value)] for value in np.random.RandomState(1).rand(2000)]
    drawn = of(rows, 1)
    monkeypatch.setattr(intervals, "MOST_DRAWN", 300)
    summed = of(rows, 1)
    assert summed["mean@1"] == pytest.approx(drawn["mean@1"], abs=1e-12)
    assert summed["no_answer"] == drawn["no_answer"] == 1.0
    assert summed["intervals"]["mean@1"] == pytest.approx(drawn["intervals"]["mean@1"], abs=1e-3)
    assert summed["intervals"]["mean@1"] != drawn["intervals"]["mean@1"]
    assert summed["intervals"]["no_answer"] == drawn["intervals"]["no_answer"]


def of(prompts: list[list[Sample]], size: int, **terms: bool) -> dict[str, Any]:
    tally = Tally()
    for samples in prompts:
        tally.add(SampledPrompt(samples, size, **terms))
    return tally.metrics()


def right(pred: str = "1", **values: float) -> Sample:
    return Sample(True, 1.0, 1.0, pred, values)


WRONG = Sample(True, 0.0, 0.0, "0")
LOST = Sample(False)
FAILED = Sample(True, error=True)


@given(st.lists(st.lists(st.tuples(SCORES, PREDS), min_size=3, max_size=3), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_metrics_are_averaged_over_prompts(rows: list[list[tuple[float, str]]]) -> None:
    each = [verls([value for value, _ in row], [pred for _, pred in row]) for row in rows]
    metrics = of([[Sample(True, value, None, pred) for value, pred in row] for row in rows], 3)
    for name in each[0]:
        assert metrics[name] == pytest.approx(np.mean([entry[name] for entry in each]), rel=1e-12, abs=1e-12)


def test_a_sample_without_an_answer_counts_as_wrong_unless_it_is_skipped() -> None:
    rows = [[right(), LOST], [right(), right()]]
    counted, skipped = of(rows, 2), of(rows, 2, skip_unanswered=True)
    assert (counted["mean@2"], counted["pass@1"], counted["unanswered"]) == (0.75, 0.75, 1)
    assert (skipped["mean@1"], skipped["mean@2"], skipped["pass@1"], skipped["unanswered"]) == (1.0, 1.0, 1.0, 1)
    assert of([[LOST, LOST]], 2, skip_unanswered=True)["prompts"] == 1


def test_a_reward_that_failed_counts_as_wrong_and_is_counted() -> None:
    metrics = of([[right(), FAILED]], 2)
    assert (metrics["mean@2"], metrics["pass@1"], metrics["pass@2"], metrics["reward_errors"]) == (0.5, 0.5, 1.0, 1)


def test_other_numbers_of_a_reward_have_verls_metrics_too() -> None:
    metrics = of([[right(form=0.5), right(form=1.0)], [right(form=0.25), LOST], [LOST, LOST]], 2)
    assert metrics["form/mean@2"] == pytest.approx((0.75 + 0.125 + 0.0) / 3)
    assert metrics["form/best@2/mean"] == pytest.approx(
        np.mean([verls([0.5, 1.0], [None] * 2)["best@2/mean"], verls([0.25, 0.0], [None] * 2)["best@2/mean"], 0.0])
    )


@pytest.mark.parametrize("terms", [{"adaptive": True}, {}])
def test_pass_at_k_is_left_out_where_it_is_unknown(terms: dict[str, bool]) -> None:
    rows = [[right(), WRONG], [right(), right() if terms else Sample(True, 0.5, None, "1")]]
    metrics = of(rows, 2, **terms)
    assert not [name for name in metrics if name.startswith("pass")]
    assert "pass@1" in of(rows[:1], 2)


def test_a_proportion_has_wilsons_interval_and_a_mean_that_of_draws() -> None:
    metrics = of([[right(), WRONG]] * 5 + [[LOST, LOST]] * 5, 2)
    assert metrics["no_answer"] == 0.5
    assert metrics["intervals"]["no_answer"] == intervals.wilson(5, 10)
    low, high = metrics["intervals"]["mean@2"]
    assert low < metrics["mean@2"] < high


@given(st.lists(st.lists(st.sampled_from([right(), WRONG, LOST, FAILED]), min_size=4, max_size=4), min_size=1))
@settings(max_examples=20, deadline=None)
def test_counts_of_right_samples_add_up_to_pass_at_1(rows: list[list[Sample]]) -> None:
    tally = Tally()
    for samples in rows:
        tally.add(SampledPrompt(samples, 4))
    assert tally.correct == Counter((sum(sample.acc == 1 for sample in row), 4) for row in rows)
    assume(rows)
    share = sum(count * prompts for (count, _), prompts in tally.correct.items()) / (4 * len(rows))
    assert tally.metrics()["pass@1"] == pytest.approx(share, abs=1e-12)
