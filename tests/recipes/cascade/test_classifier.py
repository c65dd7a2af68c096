"""Recipe `cascade` with an embedding model: a classifier of its vectors learns from the first rows of the sample."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchyard.recipes import Answer, Item
from batchyard.recipes.program import Request
from recipes.cascade.classifier import Classifier, packed
from recipes.cascade.rounds import TRAINING, trained_rows
from tests.recipes.cascade.made import embedded, run

LABELS = ["bad", "good"]


def rows(number: int, noise: float = 0.5) -> list[dict[str, Any]]:
    """Return rows with vectors whose first number decides the large model's label, up to noise."""
    draw = np.random.default_rng(3)
    vectors = draw.normal(size=(number, 8))
    labels = vectors[:, 0] + noise * draw.normal(size=number) > 0
    return [
        {
            "custom_id": f"r{row}",
            "prompt": "?",
            "vector": vector.tolist(),
            "large": LABELS[label],
            "small": "bad",
            "p": 0.5,
        }
        for row, (vector, label) in enumerate(zip(vectors, labels.astype(int), strict=True))
    ]


def test_an_embedding_model_answers_the_rows_that_its_classifier_is_sure_about(tmp_path: Path) -> None:
    table = rows(3000)
    report, results = run(tmp_path, embedded, table, proxy="", embedding="vectors", labels=LABELS, agree=0.9)
    lines, metrics = results.lines("answers.jsonl"), report.metrics
    assert [line["custom_id"] for line in lines] == [row["custom_id"] for row in table]
    by_vectors = [line for line in lines if line["answered_by"] == "vectors"]
    assert metrics["certified"] and metrics["proxy"] == len(by_vectors) > 1500
    assert sum(line["answer"] == line["large"] for line in lines) >= 0.9 * 3000
    assert min(line["confidence"] for line in by_vectors) >= metrics["threshold"]
    assert metrics["trained"] == trained_rows(3000) == 150 and metrics["unusable"] == 0
    assert metrics["tokens"]["proxy"] == {"requests": 3000, "input_tokens": 9000, "output_tokens": 0}
    assert "batchyard_cascade" not in lines[0]


def test_rows_that_train_the_classifier_never_count_as_its_sample(tmp_path: Path) -> None:
    _, results = run(tmp_path, embedded, rows(800), proxy="", embedding="vectors", labels=LABELS, agree=0.9, audit=0)
    (_, first), (_, second) = results.rounds[:2]
    asked = [item.columns["batchyard_cascade"] for item in second.ended]
    training = {item.custom_id for item, state in zip(second.ended, asked, strict=True) if "why" in state}
    assert {state["why"] for state in asked if "why" in state} == {TRAINING} and len(training) == 100
    first_rows = sorted(first.ended, key=lambda item: item.result["order"])[:100]
    assert training == {item.custom_id for item in first_rows}
    assert results.rounds[2][0].metrics.get("next", {}).keys() <= {"sample", "rest"}


def test_a_filter_takes_the_probability_of_the_first_label_from_the_classifier(tmp_path: Path) -> None:
    how = {"precision": 0.8, "recall": 0.8, "labels": ["good", "bad"], "truth": "large"}
    report, results = run(tmp_path, embedded, rows(3000, 0.2), proxy="", embedding="vectors", **how)
    kept = {line["custom_id"] for line in results.lines("answers.jsonl") if line["answer"] == "good"}
    wanted = {line["custom_id"] for line in results.lines("answers.jsonl") if line["large"] == "good"}
    assert report.metrics["certified"] and report.metrics["proxy"] > 1000
    assert len(kept & wanted) >= 0.8 * max(len(kept), len(wanted))
    assert report.metrics["truth"]["proxy"]["mean"] > 0.9


def test_the_better_of_a_chat_model_and_an_embedding_model_decides(tmp_path: Path) -> None:
    report, _ = run(tmp_path, embedded, rows(1000), embedding="vectors", labels=LABELS, agree=0.85)
    assert report.metrics["chosen_proxy"] == "vectors" and report.metrics["tokens"]["proxy"]["requests"] == 2000


@pytest.mark.parametrize("stage", ["embed", "large"])
def test_without_vectors_or_labels_to_learn_from_the_large_model_is_asked_about_every_row(
    tmp_path: Path, stage: str
) -> None:
    def failing(item: Item, request: Request) -> Answer:
        if request.stage == stage:
            return Answer(ok=False, error={"code": "engine_error", "message": "No."})
        return embedded(item, request)

    report, results = run(tmp_path, failing, rows(50), proxy="", embedding="vectors", labels=LABELS, agree=0.8)
    assert report.metrics["proxy"] == 0 and not report.metrics["certified"]
    assert "gave no answer with a confidence" in dict(report.warnings)["not_certified"]
    assert {line["error"] is not None for line in results.lines("answers.jsonl")} == {stage == "large"}


def test_an_embedding_model_gets_the_texts_of_a_message_with_images(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    parts = [image, {"type": "text", "text": "Which?"}, {"type": "text", "text": "This?"}]
    table = [row | {"prompt": [{"role": "user", "content": parts}]} for row in rows(4)]
    texts = set()

    def kept(item: Item, request: Request) -> Answer:
        texts.update([request.body["input"]] if request.stage == "embed" else [])
        return embedded(item, request)

    run(tmp_path, kept, table, proxy="", embedding="vectors", labels=LABELS)
    assert texts == {"Which?\nThis?"}


@pytest.mark.parametrize("number", [1, 3])
def test_too_few_rows_to_train_on_are_answered_by_the_large_model(tmp_path: Path, number: int) -> None:
    report, results = run(tmp_path, embedded, rows(number), proxy="", embedding="vectors", labels=LABELS)
    assert [line["answered_by"] for line in results.lines("answers.jsonl")] == ["large"] * number
    assert dict(report.warnings)["not_certified"]


def test_vectors_as_numbers_and_as_base64_are_the_same() -> None:
    numbers = np.arange(1, 5, dtype="<f4")
    assert packed([{"embedding": numbers.tolist()}]) == packed(
        [{"embedding": base64.b64encode(numbers.tobytes()).decode()}]
    )


def test_labels_that_no_row_has_and_equal_vectors_have_probabilities_too() -> None:
    same = packed([{"embedding": [1.0, 2.0]}])
    classifier = Classifier.trained([same] * 10, [0] * 7 + [1] * 3, 3)
    first, second, third = classifier.probabilities(same)
    assert first == pytest.approx(0.7, abs=0.02) and second == pytest.approx(0.3, abs=0.02) and third < 0.02
