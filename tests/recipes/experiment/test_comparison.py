"""The children of an experiment are compared item by item, and nothing is said that their numbers do not show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchyard.recipes import Answer, blocks
from recipes.experiment import plots, reports, verdicts
from recipes.experiment.comparison import compare
from recipes.experiment.values import MOST_COLUMNS
from recipes.measures import intervals
from tests.recipes.experiment.made import child, measured, scored

LOST = Answer(ok=False, error={"code": "engine_died", "message": "It ended."})


def entry(document: Mapping[str, Any], metric: str, variant: str) -> dict[str, Any]:
    found: dict[str, Any] = document["metrics"][metric]["variants"][variant]
    return found


def test_each_number_is_that_of_numpy_on_the_raw_rows(tmp_path: Path) -> None:
    source = np.random.default_rng(1)
    small, big, bad = source.random(80), source.random(80) + 0.1, source.random(80) - 0.3
    children = [scored(tmp_path, name, scores) for name, scores in (("small", small), ("big", big), ("bad", bad))]
    document = compare(children, "small", [], [])
    indices = np.random.RandomState(42).randint(0, 80, size=(1000, 80))
    share = 2.258819449079553  # scipy: 100 * norm.cdf(-sqrt(80 / 79) * t.ppf(0.975, 79))
    for name, scores in (("big", big), ("bad", bad)):
        found = entry(document, "score", name)
        assert (found["n"], found["mean"]) == (80, pytest.approx(scores.mean(), abs=1e-12))
        assert found["interval"] == pytest.approx(
            np.percentile(scores[indices].mean(axis=1), [share, 100 - share]), abs=1e-9
        )
        means = (scores - small)[indices].mean(axis=1)
        assert found["difference"]["interval"] == pytest.approx(np.percentile(means, [share, 100 - share]), abs=1e-9)
        assert found["difference"]["mean"] == pytest.approx((scores - small).mean(), abs=1e-12)
    assert entry(document, "score", "bad")["difference"]["words"] == "lower than small"


def test_items_are_paired_by_their_number_and_those_that_one_side_lacks_are_left_out(tmp_path: Path) -> None:
    small = [{"number": number, "result": {"score": number}} for number in range(10)]
    big = [{"number": number, "result": {"score": number + 1}} for number in range(2, 14)]
    document = compare([child(tmp_path, "small", small), child(tmp_path, "big", big)], "small", [], [])
    difference = entry(document, "score", "big")["difference"]
    assert (difference["n"], difference["mean"], difference["interval"]) == (8, 1, [1, 1])
    assert entry(document, "score", "big")["n"] == 12


def test_repeats_are_pooled_item_by_item(tmp_path: Path) -> None:
    children = [
        scored(tmp_path, "big", [0, 1, 1, 0]),
        scored(tmp_path, "big", [1, 1, 0], repeat=1),
        scored(tmp_path, "big", [9, 9, 9, 9], repeat=2, status="failed", error="It failed."),
    ]
    document = compare(children, None, [], [])
    assert entry(document, "score", "big") == {"n": 4, "mean": pytest.approx((0.5 + 1 + 0.5 + 0) / 4), "interval": None}
    assert document["variants"]["big"]["jobs"] == [each.job_id for each in children[:2]]


def test_right_and_wrong_have_wilsons_interval_and_mcnemars_test(tmp_path: Path) -> None:
    small, big = [0] * 30 + [1] * 10, [1] * 10 + [0] * 22 + [1] * 8
    document = compare([scored(tmp_path, "small", small), scored(tmp_path, "big", big)], "small", [], [])
    found = entry(document, "score", "big")
    assert found["interval"] == list(intervals.wilson(18, 40))
    difference = found["difference"]
    assert (difference["test"], difference["p"]) == ("mcnemar", pytest.approx(2 * (1 + 12 + 66) / 2**12))  # 10 and 2


def test_with_several_variants_a_difference_must_be_clearer(tmp_path: Path) -> None:
    small = [0] * 40
    once = [1] * 6 + [0] * 34  # p = 0.03125
    names = ["one", "two", "three"]
    alone = compare([scored(tmp_path, "small", small), scored(tmp_path, "one", once)], "small", [], [])
    assert entry(alone, "score", "one")["difference"]["words"] == "higher than small"
    children = [scored(tmp_path, "small", small), *(scored(tmp_path, name, once) for name in names)]
    together = compare(children, "small", [], [])
    for name in names:
        difference = entry(together, "score", name)["difference"]
        assert (difference["p"], difference["p_holm"]) == (0.03125, 3 * 0.03125)
        assert difference["words"] == "not decidable at n = 40"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("big.score > small.score", "held"),
        ("big.score < small.score", "not held"),
        ("big.score >= 0.5", "held"),
        ("small.score > 0.5", "not held"),
        ("same.score > small.score", "not decidable at n = 60"),
        ("same.score >= small.score", "held"),
        ("big.score > 0.79", "not decidable at n = 60"),
        ("big.scroe > 0.1", "not decidable: no metric 'scroe' of 'big'; did you mean 'score'?"),
        ("big.speed > 10", "not decidable: 'speed' has no values by item"),
        ("lost.score > 0.1", "not decidable: no child of 'lost' has completed"),
        ("bgi.score > 0.1", "not decidable: column 1: no variant is named 'bgi'; did you mean 'big'?"),
    ],
)
def test_an_expectation_is_held_only_if_the_interval_says_so(tmp_path: Path, text: str, words: str) -> None:
    low, high = [0.2, 0.3, 0.1] * 20, [0.8, 0.7, 0.9] * 20
    children = [
        scored(tmp_path, "small", low),
        scored(tmp_path, "same", low),
        scored(tmp_path, "big", high, metrics={"speed": 20}),
        scored(tmp_path, "lost", high, status="failed"),
    ]
    comparison = compare(children, "small", [text], [text])
    [verdict] = comparison["expect"]
    assert verdict["words"] == words
    assert comparison["passed"] == (words == "held")


def test_an_expression_without_a_variant_passes_only_if_it_holds_for_each(tmp_path: Path) -> None:
    children = [scored(tmp_path, name, [value] * 20) for name, value in (("small", 0.2), ("big", 0.9))]
    comparison = compare(children, None, ["score > 0.5"], ["score > 0.1"])
    assert [verdict["verdict"] for verdict in comparison["expect"]] == ["not held", "held"]
    assert comparison["passed"] is True
    assert compare(children, None, [], ["score > 0.5"])["passed"] is False
    assert compare(children, None, ["score > 0.5"], [])["passed"] is None


def test_two_names_of_one_configuration_cannot_be_told_apart(tmp_path: Path) -> None:
    """The verdict is wrong in at most 5 of 100 experiments on random answers."""
    undecided = {"table": 0, "expect": 0}
    for seed in range(100):
        source = np.random.default_rng(seed)
        difficulty = source.random(100)
        children = [
            scored(tmp_path, name, (source.random(100) < difficulty).astype(int).tolist()) for name in ("one", "two")
        ]
        document = compare(children, "one", ["two.score > one.score"], [])
        undecided["table"] += entry(document, "score", "two")["difference"]["verdict"] == "not decidable"
        undecided["expect"] += document["expect"][0]["verdict"] == "not decidable"
    assert min(undecided.values()) >= 95, undecided


def test_variants_over_different_inputs_are_not_paired(tmp_path: Path) -> None:
    other = {"recipe": "debate", "input_sha256": "b" * 64}
    children = [scored(tmp_path, "small", [0] * 20), scored(tmp_path, "big", [1] * 20, manifest=other)]
    document = compare(children, "small", ["big.score > small.score"], [])
    assert entry(document, "score", "big")["difference"]["words"] == "not decidable: 'small' has another input"
    assert document["expect"][0]["words"] == "not decidable: 'big' and 'small' have different inputs"


def test_the_last_round_is_compared_and_the_others_are_shown(tmp_path: Path) -> None:
    children = [
        scored(tmp_path, name, [score] * 10, round=number, metrics={"score": score})
        for number in (0, 1)
        for name, score in (("small", 0.1 + number), ("big", 0.5 + number))
    ]
    comparison = compare(children, "small", [], [])
    assert entry(comparison, "score", "big")["mean"] == 1.5
    lines = next(block for block in blocks.as_json(reports.view(comparison)) if block["kind"] == "lines")
    assert lines["x"] == [0, 1]
    assert lines["series"] == [{"name": "small", "y": [0.1, 1.1]}, {"name": "big", "y": [0.5, 1.5]}]


def test_requests_are_summed_by_item_and_their_seconds_have_numpys_percentiles(tmp_path: Path) -> None:
    source = np.random.default_rng(3)
    requests = [
        {"number": number, "seconds": seconds, "input_tokens": 10, "output_tokens": number, "ok": True}
        for number in range(7)
        for seconds in source.random(3).astype(np.float32).tolist()
    ]
    requests += [{"number": 6, "ok": False, "error": "request_timeout", "seconds": None}]
    requests += [{"number": 7, "ok": None}, {"number": 3, "kind": "reward", "value": "1"}]
    requests.sort(key=lambda row: int(row["number"]))
    own = child(tmp_path, "big", [{}] * 9, requests)
    document = compare([own], None, [], [])
    seconds = np.array([row["seconds"] for row in requests if row.get("seconds") is not None], np.float32)
    latency = document["variants"]["big"]["latency"]
    for share in (50, 90, 95, 99):
        assert latency[f"p{share}"] == pytest.approx(np.percentile(seconds.astype(float), share), abs=1e-9)
    assert latency["requests"] == len(seconds) == 21
    assert document["variants"]["big"]["errors"] == {"request_timeout": 1}
    table = measured(own).table
    expected = {
        "requests": [3] * 6 + [4, 1, 0],
        "errors": [0] * 6 + [0.25, 0, np.nan],
        "output_tokens": [0, 3, 6, 9, 12, 15, 18, 0, 0],
        "input_tokens": [30] * 7 + [0, 0],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(np.asarray(table.get(name)), values)
    assert entry(document, "seconds/p95", "big")["mean"] == latency["p95"]
    assert document["metrics"]["seconds/p95"]["by_item"] is False


def test_metrics_that_there_is_no_room_for_are_named_in_a_warning(tmp_path: Path) -> None:
    room = MOST_COLUMNS - 1  # `completed` is one
    many = [{"result": {f"metric-{number}": 1 for number in range(room + 5)}}]
    children = [scored(tmp_path, "small", [1]), child(tmp_path, "big", many), child(tmp_path, "big", many, repeat=1)]
    comparison = compare(children, "small", [], [])
    message = (
        f"Variant 'big' has more than 256 metrics by item. 5 are not compared; the first of them is 'metric-{room}'."
    )
    assert comparison["warnings"] == [{"code": "metrics_left_out", "message": message}]
    for text in (reports.comparison(comparison), reports.final(comparison)):
        assert f"**Warning:** {message}\n\n" in text
    assert compare(children[:1], "small", [], [])["warnings"] == []


def test_many_children_hold_few_file_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_files = []

    def judged(*args: Any) -> Any:
        open_files.append(len(list(Path("/proc/self/fd").iterdir())))
        return judge(*args)

    judge = verdicts.judge
    monkeypatch.setattr(verdicts, "judge", judged)
    before = len(list(Path("/proc/self/fd").iterdir()))
    children = [child(tmp_path, "big", [{}] * 3, [{"number": 1}], repeat=number) for number in range(50)]
    compare(children, None, ["completed > 0.5"], [])
    assert open_files[0] < before + 25, "50 children have 100 files; other threads of this process open some, too"


# Hostile inputs


@pytest.mark.parametrize("baseline", ["small", "lost", None])
def test_nothing_is_decided_where_nothing_completed(tmp_path: Path, baseline: str | None) -> None:
    children = [
        child(tmp_path, "small", None, manifest={}, status="failed", error="model_not_found"),
        child(tmp_path, "lost", [], [], manifest={}),
    ]
    comparison = compare(children, baseline, ["score > 0.5"], ["score > 0.5"])
    assert {verdict["verdict"] for verdict in comparison["expect"]} == {"not decidable"}
    assert comparison["passed"] is False
    for text in (
        reports.comparison(comparison),
        reports.final(comparison),
        reports.csv_of(comparison),
        *plots.of(comparison).values(),
    ):
        assert "nan" not in text.casefold()
    assert "model_not_found" in reports.final(comparison)
    json.dumps([comparison, blocks.as_json(reports.view(comparison))], allow_nan=False)


def test_an_experiment_without_children_has_a_report() -> None:
    comparison = compare([], None, ["score > 1"], [])
    assert comparison["expect"][0]["words"] == "not decidable: there is no other variant"
    assert reports.final(comparison).startswith("# Report of the experiment\n\n0 of 0 children completed.")


@pytest.mark.parametrize("scores", [[0.5], [1], [0.25] * 5])
def test_few_items_decide_nothing(tmp_path: Path, scores: list[float]) -> None:
    children = [scored(tmp_path, "small", [0.0] * len(scores)), scored(tmp_path, "big", scores)]
    comparison = compare(children, "small", ["big.score > small.score"], [])
    words = f"not decidable at n = {len(scores)}"
    assert entry(comparison, "score", "big")["difference"]["words"] == words
    assert comparison["expect"][0]["words"] == words


def test_a_baseline_that_failed_leaves_the_variants_with_their_own_intervals(tmp_path: Path) -> None:
    children = [scored(tmp_path, "small", [1] * 30, status="failed"), scored(tmp_path, "big", [1] * 30)]
    document = compare(children, "small", ["big.score > 0.5", "big.score > small.score"], [])
    assert [verdict["words"] for verdict in document["expect"]] == [
        "held",
        "not decidable: no child of 'small' has completed",
    ]
    difference = entry(document, "score", "big")["difference"]
    assert difference["words"] == "not decidable: no child of 'small' has completed"


def test_values_that_are_no_numbers_are_no_values(tmp_path: Path) -> None:
    items = [{"result": {"score": score}} for score in (None, "0.5", 0.5, [1], 0.7, True)]
    document = compare([child(tmp_path, "big", items, metrics={"rate": None, "name": "x"})], None, [], [])
    assert entry(document, "score", "big")["n"] == 3
    assert set(document["metrics"]) == {"completed", "score"}


def test_a_number_of_a_reward_that_is_none_is_no_value(tmp_path: Path) -> None:
    """NaN becomes null in results. The options that ran may be unknown, too."""

    def sample(length: float | None) -> dict[str, Any]:
        return {"text": "x", "error": None, "score": 1.0, "acc": None, "pred": None, "values": {"length": length}}

    items = [{"result": {"samples": [sample(length), sample(2.0)]}} for length in (1.0, None, 3.0)]
    document = compare([child(tmp_path, "big", items, manifest={"recipe": "rollout"})], None, [], [])
    assert entry(document, "mean@2", "big")["n"] == 3
    assert entry(document, "length/mean@2", "big") == {"n": 2, "mean": 2.0, "interval": None}
    json.dumps(document, allow_nan=False)


def test_a_child_without_results_and_journal_has_its_metrics(tmp_path: Path) -> None:
    children = [child(tmp_path, name, None, metrics={"rate": rate}) for name, rate in (("small", 1), ("big", 2))]
    comparison = compare(children, "small", ["big.rate > small.rate"], [])
    assert comparison["expect"][0]["words"] == "not decidable: 'rate' has no values by item"
    assert "| rate | big | - | 2 |" in reports.comparison(comparison)
    json.dumps(blocks.as_json(reports.view(comparison)), allow_nan=False)
