"""What an evaluation leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.recipes import Item
from batchyard.recipes.program import Request
from tests.recipes.evaluate.made import SUMS, run, tables

REVIEWS = [{"prompt": f"Review {n}", "answer": ("good", "bad", "mixed")[n % 3], "length": n % 2} for n in range(30)]


def mostly(item: Item, request: Request) -> str:
    """Say good of all that is mixed, and nothing that can be read of the first."""
    if item.number == 0:
        return "Who knows"
    return "good" if item.columns["answer"] == "mixed" else str(item.columns["answer"])


def test_wrong_answers_come_first_with_question_expected_and_predicted() -> None:
    results, _ = run(REVIEWS, mostly, template="Say it: {prompt}")
    lines = results.lines("answers.jsonl")
    assert [line["wrong"] for line in lines] == [True] * 11 + [False] * 19
    assert lines[0] | {"question": "Review 0", "expected": "good", "predicted": "Who knows"} == lines[0]


def test_a_classification_has_a_confusion_of_expected_and_predicted() -> None:
    _, report = run(REVIEWS, mostly)
    matrix = tables(report)["Answers: expected (rows) and predicted (columns)"]
    assert (matrix.rows, matrix.columns) == (["bad", "good", "mixed"], ["bad", "good", "mixed", "Who knows"])
    assert matrix.values == [[10, 0, 0, 0], [0, 9, 0, 1], [0, 10, 0, 0]]


def test_answers_that_are_all_different_have_none() -> None:
    _, report = run(SUMS, mostly)
    assert not any("predicted (columns)" in title for title in tables(report))


def test_metrics_are_shown_by_the_values_of_columns() -> None:
    _, report = run(REVIEWS, mostly, slices=["answer", "length"])
    by_answer = report.metrics["slices"]["answer"]
    assert {name: each["exact"]["mean"] for name, each in by_answer.items()} == {"good": 0.9, "bad": 1.0, "mixed": 0.0}
    assert tables(report)["By length"].rows[0][:2] == ["0", 15]


def test_an_interval_is_wilsons_or_that_of_draws_of_questions_or_clusters() -> None:
    _, plain = run(REVIEWS, mostly)
    _, clustered = run(REVIEWS, mostly, cluster="answer")
    low, high = plain.metrics["exact"]["intervals"]["mean"]
    assert low < 19 / 30 < high
    assert clustered.metrics["exact"]["intervals"] == {}, "three clusters are too few"


def test_a_score_between_0_and_1_has_a_histogram() -> None:
    _, report = run(SUMS, lambda item, request: "the sum", metrics=["rouge-1"], ground_truth="prompt")
    assert not any(title.startswith("Questions by") for title in tables(report)), "all are 0"
    rows = [{"prompt": "a", "answer": "the cat sat"}] * 12
    _, report = run(rows, lambda item, request: "the cat", metrics=["rouge-1"])
    assert sum(tables(report)["Questions by rouge-1"].values) == 12


def test_fields_of_json_are_means_of_their_own() -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a", "answer": {"name": "Ann", "age": 3}}] * 10
    _, report = run(rows, lambda item, request: '{"name": "Ann", "age": 4}', metrics=["json-fields"])
    assert report.metrics["json-fields"]["mean"] == 0.5
    assert report.metrics["values"] == {"json-fields/field name": 1.0, "json-fields/field age": 0.0}
    assert report.metrics["wrong"] == 10


def test_an_evaluation_without_rows_that_ended_has_a_report() -> None:
    _, report = run([], mostly)
    assert report.metrics["questions"] == 0
    assert report.metrics | {"answers": 0} == report.metrics


def test_the_means_at_the_top_of_a_result_are_what_an_experiment_compares() -> None:
    results, _ = run(SUMS, mostly, metrics=["exact", "numeric"])
    assert {name for name, value in results.ended[0].result.items() if isinstance(value, float)} == {"exact", "numeric"}


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_question_that_never_ended_is_wrong_as_often_as_it_was_to_be_asked(repeats: int) -> None:
    from recipes.evaluate.report import write
    from tests.recipes.evaluate.made import options
    from tests.support.played import PlayedResults, played_item

    lost = played_item(0, "a", SUMS[0], "expired", {"text": None}, None)
    sampling = {"temperature": 1.0}
    report = write(PlayedResults([lost]), options(repeats=repeats, sampling=sampling))
    assert [report.metrics[name] for name in ("answers", "unanswered", "wrong")] == [repeats] * 3
