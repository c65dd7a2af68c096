"""Sums over the items of a refinement, by tier and by reason."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.recipes import Bars, EndedItem, Matrix, Table
from recipes.measures.intervals import share
from recipes.refine.options import Refine
from recipes.refine.report import report
from tests.support.played import PlayedResults, played_item


def attempt(tier: int, then: str, **values: Any) -> dict[str, Any]:
    known = {"tier": tier, "text": "x", "category": None if then == "accepted" else "style", "reason": None}
    return {**known, "requests": 2, "tokens": 30, "then": then, **values}


def item(number: int, state: str, *history: dict[str, Any], code: str | None = None, **result: Any) -> EndedItem:
    error = None if code is None else {"code": code, "message": "It is."}
    return played_item(number, f"row-{number}", {}, state, {"history": list(history), **result}, error)


ITEMS = [
    item(0, "completed", attempt(1, "retry"), attempt(1, "accepted"), text="a", tier=1, model="nano"),
    item(1, "completed", attempt(1, "escalate", reason="repeat"), attempt(2, "accepted"), text="b", tier=2),
    item(2, "stuck", attempt(1, "stuck", text=None), attempt(1, "stuck", text="last"), code="budget"),
    item(3, "failed", code="no_answer"),
]


def test_metrics_count_items_attempts_and_costs_by_tier() -> None:
    metrics = report(PlayedResults(list(ITEMS)), Refine(tiers=["nano", "mini"])).metrics
    assert (metrics["items"], metrics["accepted"], metrics["stuck"], metrics["failed"]) == (4, 2, 1, 1)
    nano, mini = metrics["tiers"]["1"], metrics["tiers"]["2"]
    assert (nano["attempts"], nano["accepted"], nano["pass_rate"]["mean"]) == (5, 1, pytest.approx(1 / 3))
    assert (nano["requests_per_accepted"], nano["tokens_per_accepted"]) == (10, 150)
    assert (mini["attempts"], mini["pass_rate"]["n"], mini["requests_per_accepted"]) == (1, 1, 2)
    assert metrics["escalations"] == {"repeat": 1} and metrics["stuck_by_reason"] == {"budget": 1}
    assert "catch_rate" not in metrics


def test_the_page_has_the_tiers_the_share_by_attempt_and_the_categories() -> None:
    tiers, rates, categories = report(PlayedResults(list(ITEMS)), Refine(tiers=["nano", "mini"])).view
    assert isinstance(tiers, Table) and [row[:3] for row in tiers.rows] == [["1 nano", 3, 1], ["2 mini", 1, 1]]
    assert isinstance(rates, Matrix) and rates.values == [[0.0, 0.5], [1.0, None]]
    assert isinstance(categories, Bars) and (categories.labels, categories.values) == (["style"], [4])


def test_items_without_attempts_leave_a_table_alone() -> None:
    assert len(report(PlayedResults([ITEMS[3]]), Refine(tiers=["nano"])).view) == 1


def test_a_stuck_item_shows_its_last_text() -> None:
    results = PlayedResults(list(ITEMS))
    report(results, Refine(tiers=["nano", "mini"]))
    (stuck,) = results.lines("stuck.jsonl")
    assert (stuck["custom_id"], stuck["reason"], stuck["text"]) == ("row-2", "budget", "last")
    assert [line["attempts"] for line in results.lines("done.jsonl")] == [2, 2]


def test_a_share_of_nothing_has_no_interval() -> None:
    assert share(0, 0) == {"mean": None, "n": 0, "intervals": {}}
    low, high = share(1, 2)["intervals"]["mean"]
    assert 0 < low < 0.5 < high < 1
