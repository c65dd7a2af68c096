"""Metrics of rollouts by data source, and which blocks the page has."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.recipes import Histogram, Report, Table
from recipes.measures.tally import samples_of
from recipes.rollout import metrics
from recipes.rollout.metrics import Summary
from recipes.rollout.options import Rollout


def summed(*prompts: tuple[str, list[float]], **values: Any) -> Report:
    """Return the report of prompts, each with its data source and the scores of its samples."""
    options = Rollout(**{"model": "mini", "n": 2} | values)
    summary = Summary(options)
    binary = all(score in (0, 1) for _, scores in prompts for score in scores)
    for source, scores in prompts:
        kept = [
            {"text": "x", "score": score, "acc": None, "pred": None, "error": None, "values": {}} for score in scores
        ]
        summary.add(source, list(samples_of(kept, options.n, binary=binary)))
    return summary.report()


def test_one_source_is_all_and_several_have_a_line_for_all() -> None:
    one = summed(("a", [1, 0]))
    assert one.metrics["data_sources"]["a"]["mean@2"] == one.metrics["mean@2"] == 0.5
    two = summed(("b", [1, 1]), ("a", [0, 0]))
    table = two.view[-1]
    assert isinstance(table, Table) and [row[0] for row in table.rows] == ["a", "b", "all"]


def test_more_sources_than_are_shown_count_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_SOURCES", 1)
    report = summed(("a", [1, 1]), ("b", [0, 0]))
    assert list(report.metrics["data_sources"]) == ["a"]
    assert report.metrics["prompts"] == 2


def test_many_different_rewards_are_put_into_few_bars() -> None:
    report = summed(*((f"a{number % 2}", [number / 100, 1 - number / 100]) for number in range(50)))
    rewards = next(block for block in report.view if block.title == "Samples by reward")  # type: ignore[union-attr]
    assert isinstance(rewards, Histogram) and len(rewards.labels) == metrics.MOST_BARS
    assert sum(value or 0 for value in rewards.values) == 100


def test_a_threshold_tells_the_share_of_prompts_that_reach_it() -> None:
    report = summed(("a", [0.2, 0.9]), ("a", [0.2, 0.3]), threshold=0.5)
    assert report.metrics["solved"] == 0.5
    assert "solved" in report.metrics["intervals"]
    assert "solved" not in summed(("a", [1, 0])).metrics


def test_nothing_has_a_table_without_rows() -> None:
    (table,) = summed().view
    assert isinstance(table, Table) and table.rows == []
