"""The values of a child by item are those of its results and its journal."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchyard.recipes import Answer
from recipes import registry
from recipes.experiment.values import MOST_COLUMNS, ItemValues
from tests.recipes.experiment.made import child, measured
from tests.support.played import finished, played

LOST = Answer(ok=False, error={"code": "engine_died", "message": "It ended."})


GSM8K = {
    "data_source": "openai/gsm8k",
    "prompt": [{"content": "6 * 7?", "role": "user"}],
    "reward_model": {"ground_truth": "42", "style": "rule"},
}
FUZZY = {"type": "text_similarity", "name": "n", "evaluation_metric": "fuzzy_match", "pass_threshold": 0.9} | {
    "input": "{{sample.output_text}}",
    "reference": "#### 42",
}


@pytest.mark.parametrize(
    "chosen",
    [{}, {"skip_unanswered": True}, {"threshold": 1.0, "wave": 1}, {"reward": FUZZY}],
    ids=["plain", "skipped", "adaptive", "graded"],
)
def test_the_mean_over_items_is_the_metric_of_the_rollout(tmp_path: Path, chosen: dict[str, Any]) -> None:
    recipe = registry.load(None).recipe("rollout")
    options = recipe.options.model_validate({"model": "mini", "n": 4, **chosen})
    texts: Sequence[Any] = ["#### 42", "#### 41", LOST, "no number", "#### 42", "#### 4", "#### 42"]

    def answer(item: Any, request: Any) -> Any:
        return LOST if item.number == 5 else texts[(item.number * 3 + request.sample) % len(texts)]

    results = played(recipe, [GSM8K] * 12, options, answer)
    report = finished(recipe, results, options)
    lines = [{"state": each.state, "result": dict(each.result)} for each in results.ended]
    manifest = {"recipe": "rollout", "options": options.model_dump(mode="json")}
    own = measured(child(tmp_path, "big", lines, manifest=manifest)).table
    counts = {"prompts", "samples", "unanswered", "reward_errors", "intervals", "data_sources"}
    metrics = {name: value for name, value in report.metrics.items() if name not in counts}
    assert len(metrics) > 10
    for name, value in metrics.items():
        column = own.get(name)
        assert column is not None, name
        assert np.nanmean(column) == pytest.approx(value, abs=1e-12), name
    assert set(own.names) - set(metrics) == {"completed"}


def test_a_panels_winner_has_a_score_by_task(tmp_path: Path) -> None:
    manifest = {"recipe": "panel", "options": {"checks": ["equals:1"]}}
    items = [
        {"result": {"results": [{"score": 1.0}, {"score": 0.0}]}},
        {"state": "failed", "result": {}},
        {"state": "cancelled", "result": {}},
    ]
    column = measured(child(tmp_path, "panel", items, manifest=manifest)).table.get("best_of")
    assert column is not None
    assert column[:2].tolist() == [1, 0] and np.isnan(column[2])


def test_an_item_of_refine_was_accepted_or_not_after_its_attempts(tmp_path: Path) -> None:
    recipe = registry.load(None).recipe("refine")
    options = recipe.options.model_validate({"tiers": ["nano", "mini"], "gates": ["equals:42"]})

    def answer(item: Any, request: Any) -> str:
        return "42" if item.number == 0 or (item.number < 3 and request.body["model"] == "mini") else "41"

    results = played(recipe, [{"prompt": "6 * 7?"}] * 5, options, answer)
    lines = [{"state": each.state, "result": dict(each.result)} for each in results.ended]
    table = measured(child(tmp_path, "refine", lines, manifest={"recipe": "refine"})).table
    accepted, attempts = table.get("pass_rate"), table.get("attempts")
    assert accepted is not None and attempts is not None
    assert accepted.tolist() == [1, 1, 1, 0, 0] and attempts[0] == 1 and min(attempts[1:]) > 1
    assert accepted.mean() == finished(recipe, results, options).metrics["pass_rate"]["mean"]


def test_a_table_takes_no_more_columns_than_it_has_room_for() -> None:
    table = ItemValues(tempfile.TemporaryFile(), 2)  # noqa: SIM115
    for number in range(MOST_COLUMNS + 5):
        table.set(f"column-{number}", 1, number)
    table.drop(["column-0"])
    table.set("late", 0, 1)
    assert len(table.names) == MOST_COLUMNS - 1
    assert [float(np.nansum(np.asarray(table.get(name)))) for name in table.names] == list(range(1, MOST_COLUMNS))


def test_long_lines_of_results_are_read_to_the_last(tmp_path: Path) -> None:
    items = [{"result": {"text": "x" * 300_000, "score": 1}}] * 3
    assert measured(child(tmp_path, "big", items)).table.rows == 3


def test_requests_are_summed_by_item(tmp_path: Path) -> None:
    requests = [
        {"number": 0, "seconds": 1.0, "input_tokens": 10, "output_tokens": 1},
        {"number": 0, "seconds": 3.0, "input_tokens": 10, "output_tokens": 2},
        {"number": 1, "ok": False, "error": "request_timeout"},
        {"number": 1, "ok": False},
        {"number": 1, "ok": None, "seconds": 2.0},
        {"number": 1, "kind": "reward", "value": "1"},
    ]
    own = measured(child(tmp_path, "big", [{}] * 3, requests))
    expected = {
        "completed": [1, 1, 1],
        "requests": [2, 3, 0],
        "errors": [0, 2 / 3, np.nan],
        "input_tokens": [20, 0, 0],
        "output_tokens": [3, 0, 0],
        "seconds": [2, 2, np.nan],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(np.asarray(own.table.get(name)), values)
    assert own.seconds.tolist() == [1, 3, 2]
    assert own.errors == {"request_timeout": 1, "unknown": 1}


def test_a_journal_without_results_has_values_of_the_items_that_asked(tmp_path: Path) -> None:
    table = measured(child(tmp_path, "big", None, [{"number": 2, "input_tokens": 5}])).table
    assert table.rows == 3 and table.get("completed") is None
    np.testing.assert_allclose(np.asarray(table.get("input_tokens")), [np.nan, np.nan, 5])


@pytest.mark.parametrize("requests", [None, []])
def test_a_child_without_any_item_has_no_values(tmp_path: Path, requests: list[Any] | None) -> None:
    own = measured(child(tmp_path, "big", [], requests))
    assert len(own.seconds) == 0 and not own.errors
    assert all(np.isnan(np.asarray(own.table.get(name))).all() for name in own.table.names)


def test_items_that_are_missing_in_the_results_have_no_values(tmp_path: Path) -> None:
    items = [{"number": 1, "result": {"score": 0.5}}, {"number": 3, "state": "failed", "result": None}]
    table = measured(child(tmp_path, "big", items)).table
    np.testing.assert_allclose(np.asarray(table.get("completed")), [np.nan, 1, np.nan, 0])
    np.testing.assert_allclose(np.asarray(table.get("score")), [np.nan, 0.5, np.nan, np.nan])


def test_a_result_cannot_replace_what_is_measured_of_every_item(tmp_path: Path) -> None:
    table = measured(child(tmp_path, "big", [{"result": {"completed": 7, "seconds": 7, "own": 7}}])).table
    assert np.asarray(table.get("completed")).tolist() == [1] and table.get("seconds") is None
    assert np.asarray(table.get("own")).tolist() == [7]


def test_a_table_that_was_read_takes_no_more_values(tmp_path: Path) -> None:
    table = measured(child(tmp_path, "big", [{}])).table
    with pytest.raises(ValueError, match="takes no more values"):
        table.set("late", 0, 1.0)
