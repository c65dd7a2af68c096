"""Both methods of gsm8k find the answers that verl finds."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recipes.rewards import gsm8k
from tests.support.rewards import outcome

PIECES = ["#### ", "####", "#", " ", "$", ",", ".", "-", "1", "42", "1,234", "0.5", "The answer is ", "\n", "é", "٣"]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join)


def verls_answer(text: str, method: str) -> str | None:
    """A transcription of verl's `extract_solution` (verl/utils/reward_score/gsm8k.py, 0.9.1)."""
    if len(text) > 300:
        text = text[-300:]
    if method == "strict":
        solutions = re.findall("#### (\\-?[0-9\\.\\,]+)", text)
        return solutions[-1].replace(",", "").replace("$", "") if len(solutions) > 0 else None
    final = None
    for final in reversed(re.findall("(\\-?[0-9\\.\\,]+)", text)):
        if final not in ["", "."]:
            break
    return final


def agrees_with_verl(text: str, truth: str) -> None:
    for name, method in (("gsm8k", "strict"), ("gsm8k-flexible", "flexible")):
        answer = verls_answer(text, method)
        expected = 0.0 if answer is None or answer != truth else 1.0
        result = outcome(name, text, truth)
        assert (result.score, result.pred) == (expected, answer)


@given(TEXTS, st.sampled_from(["42", "1234", "1,234", ".", "-", "-42", "0.5"]))
@example("#### 42" + "x" * 300, "42")
@example("." + "x" * 299 + " . . .", ".")
@example("#### $42", "42")
def test_gsm8k_is_verls(text: str, truth: str) -> None:
    agrees_with_verl(text, truth)


def test_gsm8k_is_verls_on_ten_thousand_strings_of_any_length() -> None:
    source = random.Random(42)
    lengths = set()
    for _ in range(10_000):
        text = "".join(source.choices(PIECES, k=source.randrange(150)))
        found = [answer for method in ("strict", "flexible") if (answer := verls_answer(text, method)) is not None]
        agrees_with_verl(text, source.choice([*found, "42"]))
        lengths.add(len(text) > 300)
    assert lengths == {True, False}


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("#### 1,234", "1234", "1,234"),  # only the strict method drops commas
        ("#### 1\n#### 2", "2", "2"),
        ("It is 42 ...", None, "..."),
        ("It is 42.", None, "42."),
        ("no number", None, None),
    ],
)
def test_both_methods_take_the_last_number(text: str, strict: str | None, flexible: str | None) -> None:
    assert (gsm8k.strict_answer(text), gsm8k.flexible_answer(text)) == (strict, flexible)
