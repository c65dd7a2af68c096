"""Step score: what it compares and counts, and the patterns that it refuses."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from batchyard.comparing.values import matches
from store.artifacts import Artifacts
from tasks.steps import registry
from tasks.steps.score import STEP as SCORE  # noqa: F401  an entry point of a test
from tests.support.step_results import BatchResults, a_row


def test_score_counts_by_task_and_a_request_without_an_answer_is_wrong(artifacts: Artifacts) -> None:
    results = BatchResults(
        artifacts,
        [
            a_row(1, " 95 ", "95"),
            a_row(2, "96", "95"),
            a_row(3, None, "7"),
            a_row(4, "cba", "cba", task="reverse"),
            a_row(5, "whatever", None),
        ],
    )
    outcome = registry.run({"step": "score"}, results)
    summary = json.loads(artifacts.read(results.added["score-summary.json"]))
    assert summary["tasks"]["sum"] == {"total": 3, "correct": 1, "accuracy": 1 / 3}
    assert summary["tasks"]["reverse"]["accuracy"] == 1.0
    assert (summary["total"], summary["correct"], summary["without_expected"]) == (4, 2, 1)
    scores = [json.loads(line) for line in artifacts.read(results.added["scores.jsonl"]).splitlines()]
    assert [(score["line"], score["custom_id"], score["correct"]) for score in scores] == [
        (1, "id-1", True),
        (2, "id-2", False),
        (3, "id-3", False),
        (4, "id-4", True),
    ]
    assert outcome["summary"] == {"total": 4, "correct": 2, "accuracy": 0.5, "without_expected": 1}


def test_an_expected_number_is_compared_as_what_it_is(artifacts: Artifacts) -> None:
    rows = [replace(a_row(1, "42", "x"), body={"metadata": {"expected": 42}})]
    rows += [replace(a_row(2, "It is 1,234.50.", "x"), body={"metadata": {"expected": 1234.5}})]
    results = BatchResults(artifacts, rows)
    registry.run({"step": "score", "method": "numeric"}, results)
    summary = json.loads(artifacts.read(results.added["score-summary.json"]))
    assert (summary["total"], summary["correct"], summary["without_expected"]) == (2, 2, 0)


def test_score_of_a_batch_without_expected_answers_has_no_accuracy(artifacts: Artifacts) -> None:
    results = BatchResults(artifacts, [a_row(1, "x", None)])
    registry.run({"step": "score"}, results)
    assert json.loads(artifacts.read(results.added["score-summary.json"]))["accuracy"] is None


@pytest.mark.parametrize(
    ("method", "answer", "expected", "correct"),
    [
        ("exact", "a\n", "a", True),
        ("exact", "A", "a", False),
        ("numeric", "The sum is 1,095.0.", "1095", True),
        ("numeric", "first 3, then -4", "-4", True),
        ("numeric", "no number", "5", False),
        ("numeric", "5", "no number", False),
        ("regex", "it is positive", r"\bpositive\b", True),
        ("regex", "it is positively so", r"\bpositive\b", False),
    ],
)
def test_each_method_compares_in_its_own_way(method: str, answer: str, expected: str, correct: bool) -> None:
    assert matches(method, answer, expected) is correct


def test_a_pattern_that_backtracks_takes_time_linear_in_the_answer() -> None:
    began = time.monotonic()
    assert not matches("regex", "a" * 100_000 + "b", "(a+)+$")
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=a)", "(?:a{1000}){1000}", r"\pL{1000}"])
def test_a_pattern_that_cannot_be_used_is_refused_with_its_place(pattern: str) -> None:
    [check] = registry.checks([{"step": "score", "method": "regex", "status": "pending"}])
    param, message = check({"metadata": {"expected": pattern}}) or ("", "")
    assert param == "body.metadata.expected"
    assert "RE2" in message


def test_a_pattern_is_checked_only_where_it_is_used_as_one() -> None:
    exact, pattern = registry.checks([{"step": "score"}, {"step": "parquet"}, {"step": "score", "method": "regex"}])
    assert exact({"metadata": {"expected": "("}}) is None
    assert pattern({"metadata": {"expected": r"\bpositive\b"}}) is None
    assert pattern({"metadata": None}) is None
