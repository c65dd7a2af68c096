"""Answers that are JSON objects, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.recipes import scored
from recipes.rewards.comparing import json_fields

TRUTH = {"name": "Ann", "age": 3, "tags": ["a", "b"]}


@pytest.mark.parametrize(
    ("answer", "score", "right"),
    [
        ('{"name": " Ann", "age": 3.0, "tags": ["a", "b"], "more": 1}', 1.0, 1.0),
        ('```json\n{"name": "Ann", "age": 4, "tags": ["a", "b"]}\n```', 2 / 3, 0.0),
        ('{"name": "Ann", "age": true, "tags": ["b", "a"]}', 1 / 3, 0.0),
        ("Ann is 3", 0.0, 0.0),
        ("[]", 0.0, 0.0),
    ],
)
@pytest.mark.parametrize("truth", [TRUTH, '{"name": "Ann", "age": 3, "tags": ["a", "b"]}'])
def test_an_answer_has_the_share_of_fields_with_the_right_value(
    answer: str, score: float, right: float, truth: Any
) -> None:
    outcome = scored(json_fields("", answer, truth))
    assert (outcome.score, outcome.acc) == (pytest.approx(score), right)


def test_each_field_is_a_number_of_its_own() -> None:
    outcome = scored(json_fields("", '{"name": "Ann", "age": 4}', TRUTH))
    assert [outcome.values[f"field {name}"] for name in TRUTH] == [1.0, 0.0, 0.0]


def test_a_truth_that_is_no_object_is_an_error_of_the_row() -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        json_fields("", "{}", "Ann")
