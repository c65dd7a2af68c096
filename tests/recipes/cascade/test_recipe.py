"""Recipe `cascade`: who answers each row, the ends that it can have, and what it reports."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from batchyard.recipes import Answer, InvalidItem, Item
from batchyard.recipes.program import Request
from recipes.cascade.flow import answered, confidence_of
from recipes.cascade.options import STATE, Round, label_of
from recipes.cascade.rounds import BUNDLE_ROWS, NEXT
from tests.recipes.cascade.made import planted, run, sure
from tests.support.played import finished


def rows(number: int, wrong_below: float = 0.7) -> list[dict[str, Any]]:
    """Return rows of which the small model has half of those wrong that it is less sure of."""
    draw = random.Random(5)
    made = []
    for row in range(number):
        p = round(draw.uniform(0.4, 1), 3)
        small = "bad" if p < wrong_below and draw.random() < 0.5 else "good"
        made.append({"custom_id": f"r{row}", "prompt": f"Review {row}", "small": small, "large": "good", "p": p})
    return made


def test_the_small_model_answers_what_it_is_sure_of_and_the_large_one_the_rest(tmp_path: Path) -> None:
    report, results = run(tmp_path, planted, rows(1200), agree=0.95)
    lines = results.lines("answers.jsonl")
    assert [line["custom_id"] for line in lines] == [f"r{row}" for row in range(1200)], "in the order of the input"
    assert [line["prompt"] for line in lines[:2]] == ["Review 0", "Review 1"] and STATE not in lines[0]
    by_small = [line for line in lines if line["answered_by"] == "small"]
    assert all(line["answer"] == line["proxy_answer"] == line["small"] for line in by_small)
    assert all(line["answer"] == "good" for line in lines if line["answered_by"] == "large")
    assert all(line["confidence"] == pytest.approx(line["p"]) and line["error"] is None for line in lines)
    metrics = report.metrics
    assert min(line["p"] for line in by_small) >= metrics["threshold"] - 1e-9
    assert sum(line["answer"] == "good" for line in lines) >= 0.95 * 1200
    assert (metrics["proxy"], metrics["large"], metrics["failed"]) == (len(by_small), 1200 - len(by_small), 0)
    assert metrics["certified"] and 400 < metrics["proxy"] < 900 and not report.warnings


def test_tokens_are_counted_by_model_beside_what_the_large_one_would_take_alone(tmp_path: Path) -> None:
    report, _ = run(tmp_path, planted, rows(1000), agree=0.95)
    metrics = report.metrics
    large = metrics["large"]
    assert metrics["tokens"]["proxy"] == {"requests": 1000, "input_tokens": 10_000, "output_tokens": 2000}
    assert metrics["tokens"]["large"] == {"requests": large, "input_tokens": 10 * large, "output_tokens": 2 * large}
    assert metrics["large_alone"] == {"requests": 1000, "input_tokens": 10_000, "output_tokens": 2000}
    assert metrics["large_share"] == pytest.approx(large / 1000)
    assert sum(metrics["confidences"]) == 1000
    names = [block.title for block in report.view]
    assert names == ["Models", "Agreement", "Confidence of the small model"]


def test_an_audit_asks_about_a_fresh_sample_of_the_small_models_rows(tmp_path: Path) -> None:
    report, results = run(tmp_path, planted, rows(600), agree=0.95, audit=80)
    without, _ = run(tmp_path, planted, rows(600), agree=0.95, audit=0)
    audit = report.metrics["audit"]
    assert audit["rows"] == 80 and without.metrics["audit"]["rows"] == 0 and without.metrics["audit"]["mean"] is None
    assert without.metrics["proxy"] - report.metrics["proxy"] == 80, "the large model's answers are taken"
    low, high = audit["intervals"]["mean"]
    assert low <= audit["mean"] <= high
    (_, last) = results.rounds[-1]
    asked = [item.columns[STATE] for item in last.ended if "why" in item.columns.get(STATE, {})]
    assert sum(state["why"] == "audit" for state in asked) == 80


def test_rows_that_a_round_does_not_ask_about_go_through_it_in_bundles(tmp_path: Path) -> None:
    _, results = run(tmp_path, planted, rows(2000), agree=0.9)
    (_, first), (_, second) = results.rounds[:2]
    bundles = [row for row in first.lines(NEXT) if "rows" in row[STATE]]
    asked = [row for row in first.lines(NEXT) if "why" in row[STATE]]
    assert len(first.ended) == 2000 and len(second.ended) == len(bundles) + len(asked) <= 2 * len(asked) + 5
    assert max(row[STATE]["rows"].count("\n") + 1 for row in bundles) <= BUNDLE_ROWS
    assert len({row["custom_id"] for row in first.lines(NEXT)}) == len(second.ended)


def test_the_sample_depends_on_the_seed_and_on_no_answer(tmp_path: Path) -> None:
    def sample(seed: int, **planting: Any) -> set[str]:
        _, results = run(tmp_path, planted, [row | planting for row in rows(200)], seed)
        return {row["custom_id"] for row in results.rounds[0][1].lines(NEXT) if "why" in row[STATE]}

    assert sample(1) == sample(1, small="other", p=0.5) != sample(2)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    made = [run(tmp_path, planted, rows(500), 3)[1].artifacts for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("number", "planting", "options", "reason"),
    [
        (400, {"small": "bad", "p": 0.8}, {}, "differs too often"),
        (400, {"p": 0.8}, {"agree": 0.99}, "confidences are equal"),
        (1000, {}, {"agree": 0.999}, "too few rows (1,000)"),
    ],
)
def test_where_nothing_can_be_certified_the_large_model_answers_all_rows(
    tmp_path: Path, number: int, planting: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    report, results = run(tmp_path, planted, [row | planting for row in rows(number)], **options)
    assert (report.metrics["proxy"], report.metrics["large"]) == (0, number)
    assert report.metrics["threshold"] is None and report.metrics["large_share"] == 1
    (warning,) = report.warnings
    assert warning[0] == "not_certified" and reason in warning[1]
    assert {line["answer"] for line in results.lines("answers.jsonl")} == {"good"}


def test_the_target_is_the_highest_of_the_range_that_the_deadline_allows(tmp_path: Path) -> None:
    """Here each round takes 1.5 s, and all end at the same time."""

    def options(seconds: float) -> dict[str, Any]:
        return {"agree": 0.96, "lowest_agree": 0.8, "by": datetime.fromtimestamp(1_700_000_001.5 + seconds, UTC)}

    late, results = run(tmp_path, planted, rows(700), **options(-1))
    sampled, metrics = results.rounds[-2][1], late.metrics
    assert "agree" not in results.rounds[0][0].metrics, "the large model's pace is not known yet"
    assert (metrics["agree"], metrics["range"], metrics["certified"]) == (0.8, [0.8, 0.96], True)
    assert metrics["eta_seconds"] == results.rounds[-2][0].metrics["eta_seconds"] > 0, "as said before the last round"
    assert [code for code, _ in late.warnings] == ["late"]
    facts = dict(late.view[1].rows)  # type: ignore[union-attr]
    assert facts["target chosen for the deadline"] == "0.8 of 0.8 to 0.96"
    for seconds, agree in ((4, 0.88), (60, 0.96)):
        chosen = finished(answered, sampled, Round(model="large", proxy="small", **options(seconds))).metrics
        assert chosen["agree"] == agree and chosen["eta_seconds"] <= seconds
        assert chosen["next"]["rest"] > results.rounds[-2][0].metrics["next"]["rest"], "a higher target takes longer"


def test_a_range_with_too_few_rows_for_its_highest_target_can_have_a_lower_one(tmp_path: Path) -> None:
    by = datetime.fromtimestamp(1_700_000_000, UTC)
    report, _ = run(tmp_path, planted, rows(300, 0), agree=0.99, lowest_agree=0.9, by=by)
    assert report.metrics["certified"] and report.metrics["agree"] == 0.9


@pytest.mark.parametrize("targets", [{"agree": 0.95}, {"precision": 0.9, "recall": 0.9}])
def test_of_several_small_models_the_one_that_saves_most_decides(tmp_path: Path, targets: dict[str, float]) -> None:
    def models(item: Item, request: Request) -> Answer:
        return sure(item.columns["large"], item.columns["p"]) if request.model == "other" else planted(item, request)

    table = [row | {"large": "good" if n % 3 else "bad", "small": "good"} for n, row in enumerate(rows(700))]
    options = {"labels": ["good", "bad"], **targets, "audit": 0}
    report, results = run(tmp_path, models, table, proxy="small, other", **options)
    metrics, lines = report.metrics, results.lines("answers.jsonl")
    assert metrics["chosen_proxy"] == "other" and {line["answered_by"] for line in lines} == {"other", "large"}
    assert all(line["proxy_answer"] == line["large"] for line in lines) and metrics["certified"]
    assert sum(line["answer"] == line["large"] for line in lines) >= 0.9 * 700
    assert metrics["tokens"]["proxy"]["requests"] == 1400 and {line["tokens"] for line in lines} == {24, 36}
    assert report.view[0].rows[0][0] == "other of small, other"  # type: ignore[union-attr]


def test_a_column_of_known_answers_that_no_row_has_is_a_warning(tmp_path: Path) -> None:
    report, _ = run(tmp_path, planted, rows(4), truth="gold")
    assert dict(report.warnings)["no_truth"]


def test_a_single_row_is_answered_by_the_large_model(tmp_path: Path) -> None:
    report, results = run(tmp_path, planted, rows(1))
    (line,) = results.lines("answers.jsonl")
    assert (line["answered_by"], line["answer"]) == ("large", "good") and "too few rows (1) for" in report.warnings[0][
        1
    ]


def test_rows_that_the_small_model_fails_on_go_to_the_large_one(tmp_path: Path) -> None:
    def failing(item: Item, request: Request) -> Answer:
        if request.stage == "proxy" and int(item.custom_id[1:]) % 10 == 0:
            return Answer(ok=False, error={"code": "engine_error", "message": "No."})
        return planted(item, request)

    report, results = run(tmp_path, failing, rows(1000))
    lines = results.lines("answers.jsonl")
    assert all(line["answered_by"] == "large" and line["confidence"] is None for line in lines[::10])
    assert report.metrics["unusable"] == 100 and report.metrics["proxy"] > 200
    assert [code for code, _ in report.warnings] == ["proxy_unusable"]


def test_rows_that_the_large_model_fails_on_have_an_error_and_count_as_differing(tmp_path: Path) -> None:
    def failing(item: Item, request: Request) -> Answer:
        if request.stage == "large" and int(item.custom_id[1:]) % 2:
            return Answer(ok=False, error={"code": "engine_error", "message": "No."})
        return planted(item, request)

    report, results = run(tmp_path, failing, [row | {"small": "good"} for row in rows(500)])
    assert report.metrics["proxy"] < 25 and 225 < report.metrics["failed"] <= 250
    assert [code for code, _ in report.warnings] == ["rows_failed"]
    lost = [line for line in results.lines("answers.jsonl") if line["answered_by"] is None]
    assert len(lost) == report.metrics["failed"] and all(line["error"]["code"] == "engine_error" for line in lost)
    assert all(line["answer"] is None for line in lost)


def test_a_small_model_without_probabilities_is_never_taken(tmp_path: Path) -> None:
    report, _ = run(tmp_path, lambda item, request: Answer(ok=True, text="good"), rows(500))
    assert report.metrics["large"] == 500
    assert "no answer with a confidence" in report.warnings[0][1]


def test_labels_hold_answers_and_are_compared_but_for_case_and_blanks(tmp_path: Path) -> None:
    asked: set[tuple[str, bool]] = set()

    def labelled(item: Item, request: Request) -> Answer:
        asked.add((request.stage, "choice" in request.structure))
        return sure(" GOOD\n" if request.stage == "proxy" else "Good", 0.9)

    report, results = run(tmp_path, labelled, rows(500), labels=["good", "bad"])
    assert asked == {("proxy", True), ("large", True)}
    assert {line["answer"] for line in results.lines("answers.jsonl")} == {"good"} and report.metrics["proxy"] > 300
    run(tmp_path, labelled, rows(2), labels=["good", "bad"], structured=False)
    assert ("proxy", False) in asked


def test_an_answer_that_is_no_label_is_not_taken_of_the_small_model(tmp_path: Path) -> None:
    report, _ = run(tmp_path, planted, rows(500), labels=["good", "other"], structured=False)
    assert report.metrics["unusable"] == sum(row["small"] == "bad" for row in rows(500))


@pytest.mark.parametrize(
    ("equal", "small", "large", "same"),
    [
        ("exact", " 7.0 ", "7", True),
        ("numeric", "It is 7.", "So 7", True),
        ("exact", "It is 7.", "7", False),
        ("json-fields", '{"a": 1, "b": 2}', '{"b": 2, "a": 1.0}', True),
        ("json-fields", '{"a": 1, "b": 3}', '{"b": 2, "a": 1}', False),
        ("json-fields>=0.5", '{"a": 1, "b": 3}', '{"b": 2, "a": 1}', True),
        ("f1>=0.6", "a red brick house", "red brick house", True),
    ],
)
def test_a_reward_decides_what_is_equal(tmp_path: Path, equal: str, small: str, large: str, same: bool) -> None:
    table = [row | {"small": small, "large": large} for row in rows(200)]
    report, _ = run(tmp_path, planted, table, equal=equal)
    assert (report.metrics["proxy_agreement"]["mean"] == 1) is same


def test_known_answers_are_compared_as_the_models_answers_are(tmp_path: Path) -> None:
    table = [row | {"small": f"So {row['small']}", "right": "GOOD" if n % 4 else ""} for n, row in enumerate(rows(300))]
    report, _ = run(tmp_path, planted, table, truth="right", equal="f1>=0.6", agree=0.9)
    truth = report.metrics["truth"]
    assert (truth["all"]["n"], truth["large"]["mean"]) == (225, 1) and truth.keys() == {"all", "proxy", "large"}
    assert truth["proxy"]["mean"] == sum(row["small"] == "So good" for n, row in enumerate(table) if n % 4) / 225
    assert truth["proxy"]["mean"] < truth["all"]["mean"] < 1
    assert dict(report.view[1].rows)["all answers: by right"].endswith("n = 225")  # type: ignore[union-attr]


def test_confidence_is_the_probability_of_all_tokens() -> None:
    tokens = [{"token": "go", "logprob": -0.5}, {"token": "od", "logprob": -0.25}]
    assert confidence_of(Answer(ok=True, extra={"logprobs": {"content": tokens}})) == pytest.approx(0.4724, abs=1e-4)
    assert confidence_of(Answer(ok=True)) is confidence_of(Answer(ok=True, extra={"logprobs": {"content": []}})) is None
    assert label_of(" Straße ", ["strasse"]) == "strasse" and label_of("x", ["y"]) is None


def test_a_column_of_the_input_cannot_have_the_name_of_a_new_one() -> None:
    assert answered.columns is not None
    options = Round(model="large", proxy="small")
    with pytest.raises(InvalidItem, match="'confidence' has the name of a result column"):
        answered.columns(options, {"prompt": "", "confidence": 1})


def test_a_round_that_has_not_completed_leaves_a_warning_and_no_answers(tmp_path: Path) -> None:
    from recipes.cascade.options import Cascade
    from recipes.cascade.recipe import cascade
    from tests.support.played import PlayedRounds, played_item

    _, results = run(tmp_path, planted, rows(300))
    ended = PlayedRounds(results.rounds[:1], tmp_path)
    error = {"code": "job_failed", "message": "Row 1: why."}
    ended.ended.append(played_item(1, "rows/0/1", {"round": 1}, "failed", {}, error))
    assert cascade.finish is not None
    report = cascade.finish(ended, Cascade(model="large", proxy="small"))
    assert report.warnings[0][0] == "unfinished" and "Row 1: why." in report.warnings[0][1]
    assert ended.artifacts["answers.jsonl"] == b""
