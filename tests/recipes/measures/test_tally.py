"""Samples are averaged over prompts, with intervals; one without an answer counts as wrong unless it is skipped."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recipes.measures import intervals
from recipes.measures.tally import Sample, SampledPrompt, Tally, all_binary, is_judged, samples_of
from tests.support.verl import PREDS, SCORES, verls


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


def kept(
    text: str | None = "x", score: float = 1.0, acc: float | None = None, error: str | None = None
) -> dict[str, Any]:
    return {"text": text, "score": score, "acc": acc, "pred": "1", "values": {}, "error": error}


def test_scores_are_binary_unless_a_judged_sample_has_another_one() -> None:
    assert all_binary([[kept(score=0.0), kept(score=1.0)], []])
    assert all_binary([[kept(score=0.5, acc=1.0)]]), "the reward says what is right"
    assert all_binary([[kept(None, score=0.5), kept(score=0.5, error="bug")]]), "nothing has judged these"
    assert not all_binary([[kept()], [kept(score=0.5)]])
    assert not is_judged(kept(error="bug"))


def test_a_kept_sample_is_right_as_its_reward_says_or_by_a_binary_score() -> None:
    result = [kept(score=0.5, acc=0.0), kept(score=1.0)]
    assert [sample.acc for sample in samples_of(result, 2, binary=True)] == [0.0, 1.0]
    assert [sample.acc for sample in samples_of(result, 2, binary=False)] == [0.0, None]


def test_an_item_that_was_never_asked_has_lost_all_its_samples() -> None:
    samples = list(samples_of([], 3, binary=True))
    assert samples == [Sample(False)] * 3


def test_a_failed_sample_keeps_no_score_of_its_reward() -> None:
    (sample,) = samples_of([kept(score=1.0, acc=1.0, error="bug")], 1, binary=True)
    assert (sample.judged, sample.score, sample.acc) == (False, 0.0, None)


def test_a_threshold_is_reached_by_a_judged_sample_alone() -> None:
    assert SampledPrompt([WRONG, right()], 2).reaches(1.0)
    assert not SampledPrompt([WRONG, FAILED, LOST], 3).reaches(0.5)


def test_a_tally_of_nothing_has_counts_alone() -> None:
    assert Tally().metrics() == {"prompts": 0, "samples": 0, "unanswered": 0, "reward_errors": 0, "intervals": {}}


def test_a_prompt_whose_samples_are_all_skipped_is_counted_and_has_no_metrics() -> None:
    metrics = of([[LOST, LOST], [right(), right()]], 2, skip_unanswered=True)
    assert (metrics["prompts"], metrics["unanswered"], metrics["mean@2"], metrics["no_answer"]) == (2, 2, 1.0, 0.0)
