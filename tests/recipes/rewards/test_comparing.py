"""An answer is compared as a text, as a number or with a pattern."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.comparing.patterns import InvalidPattern
from recipes.rewards import comparing
from tests.support.rewards import outcome


@pytest.mark.parametrize(
    ("name", "answer", "truth", "score", "pred"),
    [
        ("exact", " Paris\n", "Paris", 1.0, "Paris"),
        ("exact", "paris", "Paris", 0.0, "paris"),
        ("exact", "42", 42, 1.0, "42"),
        ("exact", " 95.", 95.0, 1.0, "95"),
        ("exact", "1,000", "1000.0", 1.0, "1000"),
        ("exact", "True", True, 1.0, "True"),
        ("exact", "True", 1, 0.0, "True"),
        ("exact", '{"b": [2.0], "a": 1}', {"a": 1, "b": [2]}, 1.0, '{"b": [2.0], "a": 1}'),
        ("exact", "none", ["none"], 0.0, "none"),
        ("gsm8k", "#### 18", 18.0, 1.0, "18"),
        ("gsm8k", "#### 18", 19.0, 0.0, "18"),
        ("gsm8k", "none", None, 0.0, None),
        ("numeric", "about 5", 5.0, 1.0, "5"),
        ("numeric", "That is 1,234.0 in all.", "#### 1234", 1.0, "1234"),
        ("numeric", "95.0", 95, 1.0, "95"),
        ("numeric", "The result is \u22123", "-3", 1.0, "-3"),
        ("numeric", "about 3-4", "4", 1.0, "4"),
        ("numeric", "none", "95", 0.0, None),
        ("numeric", f"{10**40 + 1}", f"{10**40}", 0.0, f"{10**40 + 1}"),
        ("regex", "It is Paris.", r"\bParis\b", 1.0, None),
        ("regex", "It is Lyon.", r"\bParis\b", 0.0, None),
    ],
)
def test_a_reward_compares_as_step_score_does(name: str, answer: str, truth: Any, score: float, pred: Any) -> None:
    result = outcome(name, answer, truth)
    assert (result.score, result.pred) == (score, pred)


def test_a_text_without_a_number_equals_no_other_as_a_number() -> None:
    assert not comparing.matches("numeric", "none", "none")


def test_a_ground_truth_that_is_no_pattern_is_refused() -> None:
    with pytest.raises(InvalidPattern):
        comparing.matches("regex", "x", "(")
