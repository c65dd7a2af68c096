"""Recipe `cascade` with precision and recall: which rows are wanted, who says so, and the ends that this can have."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from batchyard.endpoints.label_probabilities import TOP
from batchyard.recipes import Answer, InvalidItem, Item
from batchyard.recipes.program import Request
from recipes.cascade.flow import answered, score_of
from recipes.cascade.options import Round
from tests.recipes.cascade.made import planted, run, sure

TARGETS: dict[str, Any] = {"labels": ["yes", "no"], "precision": 0.9, "recall": 0.9}


def rows(number: int) -> list[dict[str, Any]]:
    """Return rows of which the large model wants two of five, and the small one is unsure of a few."""
    draw = random.Random(5)
    made = []
    for row in range(number):
        large = "yes" if draw.random() < 0.4 else "no"
        p = round(draw.uniform(0.5, 1), 3)
        small = large if p > 0.6 or draw.random() < 0.5 else {"yes": "no", "no": "yes"}[large]
        made.append({"custom_id": f"r{row}", "prompt": f"Ticket {row}", "small": small, "large": large, "p": p})
    return made


def shares(lines: list[dict[str, Any]]) -> tuple[float, float]:
    """Return precision and recall of answers."""
    right = sum(line["answer"] == line["large"] == "yes" for line in lines)
    return right / sum(line["answer"] == "yes" for line in lines), right / sum(line["large"] == "yes" for line in lines)


def test_the_small_model_decides_both_ends_and_the_large_one_what_is_between(tmp_path: Path) -> None:
    report, results = run(tmp_path, planted, rows(2000), **TARGETS)
    lines, metrics = results.lines("answers.jsonl"), report.metrics
    assert [line["custom_id"] for line in lines] == [f"r{row}" for row in range(2000)], "in the order of the input"
    by_small = [line for line in lines if line["answered_by"] == "small"]
    assert len(by_small) == metrics["proxy"] > 700 and metrics["certified"] and not report.warnings
    for line in lines:
        assert line["confidence"] == pytest.approx(line["p"] if line["small"] == "yes" else 1 - line["p"])
    accepted = [line["confidence"] for line in by_small if line["answer"] == "yes"]
    rejected = [line["confidence"] for line in by_small if line["answer"] == "no"]
    assert min(accepted) >= metrics["threshold"] >= metrics["rejected_up_to"] >= max(rejected)
    assert min(shares(lines)) >= 0.9
    assert metrics["wanted"] == sum(line["answer"] == "yes" for line in lines) and metrics["no_label"] == 0
    assert (metrics["precision"], metrics["recall"], metrics["confidence"]) == (0.9, 0.9, 0.95)
    assert "agree" not in metrics


def test_the_audit_bounds_precision_and_recall(tmp_path: Path) -> None:
    report, results = run(tmp_path, planted, rows(2000), **TARGETS, audit=300)
    audit = report.metrics["audit"]
    assert audit["rows"] == 300
    for share, name in zip(shares(results.lines("answers.jsonl")), ("precision", "recall"), strict=True):
        low, high = audit["intervals"][name]
        assert low <= share <= high <= 1 and high - low < 0.1
    facts = dict(report.view[1].rows)  # type: ignore[union-attr]
    assert facts["certified"] == "precision 0.9 and recall 0.9, with probability 0.95"
    assert facts["precision by the audit"] != "-" and facts["rows with 'yes'"] == str(report.metrics["wanted"])
    without, _ = run(tmp_path, planted, rows(2000), **TARGETS, audit=0)
    assert without.metrics["audit"]["intervals"] == {}


def test_a_small_model_that_is_unsure_of_its_yes_is_not_believed(tmp_path: Path) -> None:
    """What a probability is worth, the sample says: here all rows with a yes of less than 0.8 are a no."""
    table = [row | {"small": "yes", "large": "yes" if row["p"] > 0.8 else "no"} for row in rows(2000)]
    report, results = run(tmp_path, planted, table, **TARGETS)
    turned = [line for line in results.lines("answers.jsonl") if line["answered_by"] == "small" and line["p"] < 0.7]
    assert len(turned) > 300 and {line["answer"] for line in turned} == {"no"}
    assert {line["proxy_answer"] for line in turned} == {"yes"} and report.metrics["certified"]


def without_probabilities(item: Item, request: Request) -> Answer:
    return Answer(ok=True, text=item.columns["small" if request.stage == "proxy" else "large"])


@pytest.mark.parametrize(
    ("number", "planting", "options", "reason"),
    [
        (40, {}, {}, "too few rows (40) for this target; lower `precision`, `recall` or `confidence`"),
        (1000, {"large": "no"}, {}, "no row of the sample has the answer 'yes'"),
        (1000, {"p": 0.5, "small": "yes"}, {"precision": 0.99, "recall": 0.99}, "differs too often"),
    ],
)
def test_where_nothing_can_be_certified_the_large_model_answers_all_rows(
    tmp_path: Path, number: int, planting: Mapping[str, Any], options: Mapping[str, Any], reason: str
) -> None:
    report, results = run(tmp_path, planted, [row | planting for row in rows(number)], **{**TARGETS, **options})
    assert (report.metrics["proxy"], report.metrics["large"]) == (0, number)
    (warning,) = report.warnings
    assert warning[0] == "not_certified" and reason in warning[1]
    assert all(line["answer"] == line["large"] for line in results.lines("answers.jsonl"))


def test_a_small_model_without_probabilities_decides_nothing(tmp_path: Path) -> None:
    report, _ = run(tmp_path, without_probabilities, rows(500), **TARGETS)
    assert report.metrics["large"] == 500
    assert "its engine has to return log-probabilities" in report.warnings[0][1]


def test_answers_of_the_large_model_without_a_label_count_as_the_second_one(tmp_path: Path) -> None:
    table = [row | {"large": "Perhaps." if n % 3 == 0 else "Yes."} for n, row in enumerate(rows(300))]
    report, results = run(tmp_path, planted, table, **TARGETS, structured=False)
    warning = dict(report.warnings)["no_label"]
    assert f"{report.metrics['no_label']} answers are neither 'yes' nor 'no'" in warning
    assert "ask for one of these words" in warning
    by_large = [line for line in results.lines("answers.jsonl") if line["answered_by"] == "large"]
    assert {line["answer"] for line in by_large} == {"Perhaps.", "yes"}


def test_rows_that_either_model_fails_on_are_never_wanted_unseen(tmp_path: Path) -> None:
    def failing(item: Item, request: Request) -> Answer:
        number = int(item.custom_id[1:])
        if number % (10 if request.stage == "proxy" else 7) == 0:
            return Answer(ok=False, error={"code": "engine_error", "message": "No."})
        return planted(item, request)

    report, results = run(tmp_path, failing, rows(2000), **TARGETS)
    lines = results.lines("answers.jsonl")
    assert all(line["answered_by"] in ("large", None) for line in lines[::10])
    assert {code for code, _ in report.warnings} == {"proxy_unusable", "rows_failed"}
    lost = [line for line in lines if line["error"]]
    assert len(lost) == report.metrics["failed"] > 50 and all(line["answer"] is None for line in lost)


def test_a_column_of_scores_takes_the_place_of_the_small_model(tmp_path: Path) -> None:
    def large(item: Item, request: Request) -> Answer:
        assert request.stage == "large"
        return planted(item, request)

    table = [row | {"score": row["p"] if row["small"] == "yes" else 1 - row["p"]} for row in rows(2000)]
    table[7]["score"] = None
    report, results = run(tmp_path, large, table, **TARGETS, scores="score")
    lines, metrics = results.lines("answers.jsonl"), report.metrics
    assert min(shares(lines)) >= 0.9 and metrics["proxy"] > 700 and metrics["certified"]
    assert metrics["tokens"]["proxy"]["requests"] == 0 and metrics["tokens"]["large"]["requests"] == metrics["large"]
    assert lines[7]["answered_by"] == "large" and metrics["unusable"] == 1
    assert [line["confidence"] for line in lines] == [row["score"] for row in table]


def test_scores_are_numbers_from_0_to_1() -> None:
    assert answered.columns is not None
    options = Round(model="large", proxy="p", scores="score", **TARGETS)
    assert answered.columns(options, {"score": "0.3"}) == [], "as csv has them"
    for cell in (1.2, "high", -1, [0.5]):
        with pytest.raises(InvalidItem, match="'score' holds no number from 0 to 1"):
            answered.columns(options, {"score": cell})


def test_known_answers_measure_what_was_kept_and_decide_nothing(tmp_path: Path) -> None:
    """Of the known answers every tenth differs from the large model's; every fifth row has none."""
    other = {"yes": "No.", "no": "YES"}
    known = [other[row["large"]] if n % 10 == 1 else row["large"] for n, row in enumerate(rows(2000))]
    table: list[dict[str, Any]] = [
        row | {"billing": None if n % 5 == 0 else known[n]} for n, row in enumerate(rows(2000))
    ]
    without, _ = run(tmp_path, planted, table, **TARGETS)
    report, results = run(tmp_path, planted, table, **TARGETS, truth="billing")
    metrics, lines = dict(report.metrics), results.lines("answers.jsonl")
    truth = metrics.pop("truth")
    assert metrics == without.metrics
    pairs = [(line["answer"] == "yes", known[n].lower().startswith("y")) for n, line in enumerate(lines) if n % 5]
    right = sum(kept and wanted for kept, wanted in pairs)
    assert truth["all"]["mean"] == sum(kept == wanted for kept, wanted in pairs) / 1600
    assert truth["precision"]["mean"] == right / sum(kept for kept, _ in pairs)
    assert truth["recall"]["mean"] == right / sum(wanted for _, wanted in pairs)
    assert truth["proxy"]["n"] == 1600 and 0.8 < truth["large"]["mean"] < 0.95 and truth["large"]["n"] < 1000
    assert "recall: by billing" in dict(report.view[1].rows)  # type: ignore[union-attr]


def test_the_small_model_is_asked_for_other_tokens_too(tmp_path: Path) -> None:
    asked: set[tuple[str, int | None]] = set()

    def noted(item: Item, request: Request) -> Answer:
        asked.add((request.stage, request.body.get("top_logprobs")))
        return planted(item, request)

    run(tmp_path, noted, rows(200), **TARGETS)
    assert asked == {("proxy", TOP), ("large", None)}


def test_the_score_is_the_probability_of_the_first_label() -> None:
    labels = ["yes", "no"]
    assert score_of(sure("yes", 0.8), "yes", labels) == pytest.approx(0.8)
    assert score_of(sure("no", 0.8), "no", labels) == pytest.approx(0.2)
    assert score_of(Answer(ok=True, text="no"), "no", labels) is None
    # Held to its labels, an engine may still report how unlikely both were.
    other = [{"token": "yes", "logprob": math.log(0.06)}, {"token": "Yes", "logprob": math.log(0.9)}]
    content = [{"token": "no", "logprob": math.log(0.02), "top_logprobs": other}]
    answer = Answer(ok=True, text="no", extra={"logprobs": {"content": content}})
    assert score_of(answer, "no", labels) == pytest.approx(0.75)
    spoken = [{"token": "No", "logprob": math.log(0.9), "top_logprobs": [{"token": "Yes", "logprob": math.log(0.1)}]}]
    answer = Answer(ok=True, text="No", extra={"logprobs": {"content": spoken}})
    assert score_of(answer, "no", labels) == pytest.approx(0.1), "as far as its own tokens tell"
