"""Post-processing steps: what they compare, and what they write."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from batchyard.errors import ConfigurationError
from recipes.rewards.comparing import last_number, matches
from store.artifacts import Artifacts, ArtifactWriter
from store.formats.results import ResultRow
from tasks.steps import registry
from tasks.steps.score import STEP as SCORE  # noqa: F401  an entry point of a test
from tasks.steps.step import Step


class BatchResults:
    """The results of a batch, as a step sees them."""

    def __init__(self, artifacts: Artifacts, rows: list[ResultRow]) -> None:
        self._artifacts = artifacts
        self._rows = rows
        self.added: dict[str, str] = {}

    def rows(self) -> Iterator[ResultRow]:
        return iter(self._rows)

    def create(self) -> ArtifactWriter:
        return self._artifacts.create()

    def add(self, name: str, sha256: str, size: int, lines: int | None = None) -> None:
        self.added[name] = sha256


def a_row(number: int, answer: str | None, expected: str | None, task: str = "sum") -> ResultRow:
    metadata = {"expected": expected, "task": task} if expected is not None else None
    body: dict[str, Any] = {"model": "mini", "metadata": metadata}
    if answer is None:
        return ResultRow(number, f"id-{number}", body, None, None, {"code": "request_timeout", "message": "too long"})
    choice = {"message": {"content": answer}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    return ResultRow(number, f"id-{number}", body, 200, {"choices": [choice], "usage": usage}, None, 0.5)


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
    registry.run({"step": "score"}, results)
    summary = json.loads(artifacts.read(results.added["score-summary.json"]))
    assert summary["tasks"]["sum"] == {"total": 3, "correct": 1, "accuracy": 1 / 3}
    assert summary["tasks"]["reverse"]["accuracy"] == 1.0
    assert (summary["total"], summary["correct"], summary["without_expected"]) == (4, 2, 1)
    scores = [json.loads(line) for line in artifacts.read(results.added["scores.jsonl"]).splitlines()]
    assert [(score["custom_id"], score["correct"]) for score in scores] == [
        ("id-1", True),
        ("id-2", False),
        ("id-3", False),
        ("id-4", True),
    ]


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
def test_methods(method: str, answer: str, expected: str, correct: bool) -> None:
    assert matches(method, answer, expected) is correct


@pytest.mark.parametrize(("text", "value"), [("", None), ("1e3", 1000), ("a .5", 0.5), ("1,2,3", 123), ("+7", 7)])
def test_the_last_number_of_a_text(text: str, value: float | None) -> None:
    number = last_number(text)
    assert (None if number is None else float(number)) == value


def test_a_pattern_that_backtracks_takes_time_linear_in_the_answer() -> None:
    began = time.monotonic()
    assert not matches("regex", "a" * 100_000 + "b", "(a+)+$")
    assert time.monotonic() - began < 5


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


def test_a_step_that_is_not_installed_checks_nothing() -> None:
    assert registry.checks([{"step": "gone"}]) == []


def test_parquet_is_a_typed_table_in_input_order(artifacts: Artifacts) -> None:
    results = BatchResults(artifacts, [a_row(1, "95", "95"), a_row(2, None, "7")])
    registry.run({"step": "parquet"}, results)
    with artifacts.open(results.added["results.parquet"]) as file:
        first, second = pq.read_table(file).to_pylist()
    assert (first["text"], first["finish_reason"], first["input_tokens"], first["output_tokens"]) == (
        "95",
        "stop",
        5,
        2,
    )
    assert (second["text"], second["status_code"], second["error_code"]) == (None, None, "request_timeout")
    assert (first["seconds"], second["seconds"]) == (0.5, None)


def test_every_built_in_step_says_its_name() -> None:
    assert {name: registry.STEPS.get(name).name for name in registry.BUILT_IN} == {
        "score": "score",
        "parquet": "parquet",
    }


BARE = Step("bare", "has no options.", dict, print)  # type: ignore[type-var, arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [("a_row", "is no tasks.steps.step.Step"), ("BARE", "has options that are no subclass"), ("SCORE", "calls itself")],
)
def test_an_entry_point_of_no_usable_step_is_refused(name: str, says: str) -> None:
    entry = EntryPoint("mine", f"{__name__}:{name}", "batchyard.steps")
    with (
        mock.patch.dict(registry.STEPS.added, {"mine": entry}),
        pytest.raises(ConfigurationError, match=rf"entry point 'mine = .*{says}.* uninstall"),
    ):
        registry.STEPS.get("mine")


def test_an_unknown_option_is_refused(artifacts: Artifacts) -> None:
    with pytest.raises(ValidationError, match="metod"):
        registry.run({"step": "score", "metod": "exact"}, BatchResults(artifacts, []))
