"""The letter that an answer chooses."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.recipes import scored
from recipes.rewards.choices import choice, chosen


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(C)", "C"),
        ("D. Paris", "D"),
        ("B) because it is", "B"),
        ("The answer is (C).", "C"),
        ("I first thought the answer is A, but the answer is: D", "D"),
        ("Answer: **B**", "B"),
        ("A triangle has three sides, so it must be C.", "C"),
        (r"So \boxed{B} follows", "B"),
        ("Option (A) is wrong. The correct option is B", "B"),
        ("b) 42", "B"),
        ("The answer is b.", "B"),
        ("Answer: **b**", "B"),
        ("ANSWER: b", "B"),
        ("answer: a", "A"),
        ("The correct option is (a).", "A"),
        ("Option a is right", "A"),
        ("(c) since it is even", "C"),
        ("a. Paris", "A"),
        (r"So \boxed{a}", "A"),
        ("I would choose b) here", "B"),
        ("I choose **d**.", "D"),
        ("I think a train is late.", None),
        ("a train", None),
        ("I, too, am late", None),
        ("The answer is a train.", None),
        ("The answer is I do not know.", None),
        ("The answer is e-mail, i.e. f(x) or choice(s).", None),
        ("I do not know", None),
        ("", None),
    ],
)
def test_the_choice_of_an_answer(answer: str, letter: str | None) -> None:
    assert chosen(answer) == letter


@pytest.mark.parametrize(
    ("truth", "columns", "score"),
    [
        ("B", {}, 1.0),
        ("(b)", {}, 1.0),
        (1, {"choices": ["3", "4"]}, 1.0),
        ("4", {"choices": ["3", "4"]}, 1.0),
        (0, {"choices": ["3", "4"]}, 0.0),
        (1.0, {"choices": ["3", "4"]}, 1.0),
        (4.0, {"choices": [3, 4]}, 1.0),
        ("4.0", {"choices": [3, 4]}, 1.0),
        ("A", {}, 0.0),
    ],
)
def test_the_right_choice_is_a_letter_or_the_place_or_the_text_of_a_choice(
    truth: Any, columns: dict[str, Any], score: float
) -> None:
    outcome = scored(choice("", "The answer is B.", truth, columns))
    assert (outcome.score, outcome.pred) == (score, "B")
