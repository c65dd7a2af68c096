"""Reports say what ran, what was expected and what came of it, and every number in them has a source."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchyard.recipes import blocks
from recipes.experiment import plots, reports
from recipes.experiment.comparison import compare
from recipes.reports import number
from tests.recipes.experiment.made import scored
from webapp.pages.charts.view import charts_of

STARTED = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
HOSTILE = "<script>|`x`\n# y &amp;"


def manifest(**values: Any) -> dict[str, Any]:
    return {
        "recipe": "debate",
        "recipe_sha256": "c" * 64,
        "input_sha256": "a" * 64,
        "models": {"mini": {"engine": "vllm"}},
        "seed": 7,
        "request_counts": {"total": 33, "completed": 31, "failed": 2},
        "usage": {"input_tokens": 1234, "output_tokens": 5678},
        "started_at": STARTED,
        "ended_at": STARTED + 17.25,
    } | values


def numbers(text: str) -> set[str]:
    """The numbers of a report, those in names, hashes and times left out."""
    text = re.sub(r"`[0-9a-f]+`|job_\w+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\w+/\d+/\d+|p\d\d\b", " ", text)
    return set(re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?", text))


def sources(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from sources(name)
            yield from sources(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from sources(inner)
    elif isinstance(value, str):
        yield from numbers(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield number(value)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=30), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_number_of_the_final_report_is_in_the_comparison(
    tmp_path: Path, scores: list[tuple[float, float]], tokens: int
) -> None:
    told = manifest(usage={"input_tokens": tokens, "output_tokens": 1})
    children = [
        scored(tmp_path, name, [pair[index] for pair in scores], manifest=told, metrics={"speed": 1.23456 + index})
        for index, name in enumerate(("small", "big"))
    ]
    comparison = compare(children, "small", ["big.score > 0.3"], ["big.score > small.score"])
    known = set(sources(comparison))
    assert numbers(reports.final(comparison)) <= known
    assert numbers(reports.comparison(comparison)) <= known


@pytest.fixture
def comparison(tmp_path: Path) -> dict[str, Any]:
    low, high = [0.2, 0.3, 0.1] * 20, [0.8, 0.7, 0.9] * 20
    children = [
        scored(tmp_path, "small", low, manifest=manifest(), metrics={"speed": 4}),
        scored(tmp_path, "big", high, manifest=manifest(), metrics={"speed": 3}),
        scored(tmp_path, "lost", high, manifest={}, status="failed", error=HOSTILE),
    ]
    return compare(children, "small", ["big.score > small.score", "score > 0.4"], ["big.score > 0.9"])


def test_the_final_report_says_what_ran_what_failed_and_what_was_expected(comparison: dict[str, Any]) -> None:
    report = reports.final(comparison)
    assert "2 of 3 children completed." in report
    assert "| big.score > small.score | held | 60 | 0.6 |" in report
    assert "| small.score > 0.4 | not held | 60 | -0.2 |" in report
    assert "The experiment has not passed." in report
    assert "mini (vllm) | 7 | 33 | 2 | - | 1234 | 5678 |" in report
    assert "2026-03-01 12:00:00 | 17.25 |" in report
    assert "`cccccccccccc`" in report
    assert r"&lt;script>\|" in report and "\n# y" not in report


def test_the_table_has_the_baseline_first_and_a_verdict_in_words(comparison: dict[str, Any]) -> None:
    lines = [line for line in reports.comparison(comparison).splitlines() if line.startswith("| score |")]
    assert lines[0].startswith("| score | small | 60 | 0.2 |") and lines[0].endswith("| baseline |")
    assert lines[1].startswith("| score | big | 60 | 0.8 |") and lines[1].endswith("| higher than small |")
    assert "| speed | small | - | 4 |" in reports.comparison(comparison)


def test_the_csv_has_every_metric_with_all_digits(comparison: dict[str, Any]) -> None:
    rows = {(row["metric"], row["variant"]): row for row in csv.DictReader(io.StringIO(reports.csv_of(comparison)))}
    entry = comparison["metrics"]["score"]["variants"]["big"]
    assert float(rows["score", "big"]["mean"]) == entry["mean"]
    assert float(rows["score", "big"]["difference_low"]) == entry["difference"]["interval"][0]
    assert rows["speed", "big"]["n"] == "" and rows["speed", "big"]["mean"] == "3.0"


def test_the_plots_are_svg_files_of_safe_names(comparison: dict[str, Any]) -> None:
    drawn = plots.of(comparison)
    assert set(drawn) == {"score", "score-difference", "completed", "completed-difference"}
    for name, svg in drawn.items():
        assert re.fullmatch(r"[\w@.-]+", name)
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert "nan" not in svg


def test_the_page_can_draw_every_block(comparison: dict[str, Any]) -> None:
    drawn = charts_of(json.loads(json.dumps(blocks.as_json(reports.view(comparison)))))
    assert [chart.title for chart in drawn][:3] == ["Expected", "To pass", "Metrics by variant"]
    assert not [chart.problem for chart in drawn if chart.problem]


def test_the_same_children_give_the_same_files(comparison: dict[str, Any], tmp_path: Path) -> None:
    again = [scored(tmp_path, name, [1, 0, 1] * 5, job_id=name) for name in ("small", "big")]
    first, second = (compare(again, "small", ["big.score > small.score"], []) for _ in range(2))
    assert first == second
    assert reports.final(first) == reports.final(second) and plots.of(first) == plots.of(second)
