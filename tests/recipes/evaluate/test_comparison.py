"""The comparison with an earlier run, question by question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchyard.recipes import Item, Report
from batchyard.recipes.program import Request
from recipes.measures import intervals
from tests.recipes.evaluate.made import EVALUATE, ResultsAfter, left_behind, options, run, tables
from tests.support.played import PlayedResults, finished, played

ROWS = [{"prompt": f"{n} + 1 =", "answer": str(n + 1), "kind": "even" if n % 2 == 0 else "odd", "page": n // 4}
        for n in range(80)]  # fmt: skip


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw 1,000 times. tests/recipes/measures has the intervals of all draws."""
    monkeypatch.setattr(intervals, "DRAWS", 1000)


def right(item: Item, request: Request) -> str:
    return str(item.columns["answer"])


def right_but_for_every_fifth(item: Item, request: Request) -> str:
    return "x" if item.number % 5 == 0 else str(item.columns["answer"])


def compared(earlier: PlayedResults, folder: Path, rows: Any = ROWS, before: Any = None, **values: Any) -> Report:
    """Return the report of a run where all is right, after an earlier one."""
    values = {"compare_with": "job_1", **values}
    now = played(EVALUATE, rows, options(**values), right)
    files = left_behind(earlier, folder, **(before or {}))
    return finished(EVALUATE, ResultsAfter(now, files), options(**values))


def test_the_same_questions_are_paired_and_the_difference_has_an_interval_and_a_verdict(tmp_path: Path) -> None:
    earlier, _ = run(ROWS, right_but_for_every_fifth)
    report = compared(earlier, tmp_path, slices=["kind"])
    change = report.metrics["compared"]["exact"]
    assert (change["earlier"], change["now"], change["mean"], change["n"]) == (0.8, 1.0, 1.0 - 0.8, 80)
    assert change["verdict"] == "higher" and change["p"] < 0.001
    assert report.metrics["compared"]["slices"].keys() == {"kind = even", "kind = odd"}
    assert tables(report)["Compared with job_1"].rows[0][-1] == "higher"
    assert report.warnings == []


def test_no_change_is_not_decidable(tmp_path: Path) -> None:
    earlier, _ = run(ROWS, right)
    change = compared(earlier, tmp_path).metrics["compared"]["exact"]
    assert (change["mean"], change["verdict"]) == (0.0, "not decidable at n = 80")


def test_questions_are_known_by_their_rows_wherever_these_stand_now(tmp_path: Path) -> None:
    earlier, _ = run(
        ROWS[10:][::-1], lambda item, request: "x" if item.columns["answer"] == "80" else right(item, request)
    )
    report = compared(earlier, tmp_path)
    compared_with = report.metrics["compared"]
    assert [compared_with[name] for name in ("pairs", "only_now", "only_earlier")] == [70, 10, 0]
    assert compared_with["exact"]["earlier"] == 69 / 70
    assert ("partly_compared", "70 questions are in both runs; 10 are in one, and not compared.") in report.warnings


def test_equal_rows_are_paired_one_by_one_and_rows_with_a_custom_id_by_that(tmp_path: Path) -> None:
    twice = [*ROWS, *ROWS]
    earlier, _ = run(twice, lambda item, request: "x" if item.number >= 80 else right(item, request))
    change = compared(earlier, tmp_path, rows=twice).metrics["compared"]
    assert (change["pairs"], change["exact"]["earlier"]) == (160, 0.5)
    named = [{**row, "custom_id": f"q{number}"} for number, row in enumerate(ROWS)]
    earlier, _ = run(named, right)
    reworded = [{**row, "prompt": f"What is {row['prompt']}"} for row in named]
    assert compared(earlier, tmp_path, rows=reworded).metrics["compared"]["pairs"] == 80


def test_the_options_that_have_changed_are_named_and_another_way_of_measuring_is_a_warning(tmp_path: Path) -> None:
    before = {"model": "nano", "sampling": {"temperature": 0, "max_tokens": 9}, "extract": "first_line"}
    earlier, _ = run(ROWS, right, **before)
    report = compared(earlier, tmp_path, before=before)
    assert report.metrics["compared"]["changed"] == ["model", "extract", "sampling.max_tokens"]
    assert [code for code, _ in report.warnings] == ["other_metrics"]


def test_questions_of_one_cluster_count_together(tmp_path: Path) -> None:
    earlier, _ = run(ROWS, lambda item, request: "x" if item.columns["page"] in (1, 2) else right(item, request))
    alone = compared(earlier, tmp_path).metrics["compared"]["exact"]
    together = compared(earlier, tmp_path, cluster="page").metrics["compared"]["exact"]
    assert alone["mean"] == together["mean"] == pytest.approx(0.1)
    assert alone["verdict"] == "higher", "8 questions have changed"
    assert together["p"] == 0.5, "but only 2 of 20 pages have"
    assert together["verdict"] == "not decidable at n = 80"


def test_an_earlier_run_that_is_gone_or_is_something_else_is_a_warning(tmp_path: Path) -> None:
    now = played(EVALUATE, ROWS, options(compare_with="job_1"), right)
    report = finished(EVALUATE, ResultsAfter(now, {}), options(compare_with="job_1"))
    (warning,) = report.warnings
    assert warning[0] == "not_compared" and "has no results.jsonl (any more)" in warning[1]
    files = left_behind(now, tmp_path)
    files["config.json"].write_text(json.dumps({"recipe": "rollout", "options": {}}))
    report = finished(EVALUATE, ResultsAfter(now, files), options(compare_with="job_1"))
    assert "job_1 is one of recipe rollout" in report.warnings[0][1]
