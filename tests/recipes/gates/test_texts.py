"""Gates over the text as it is pass what their names say."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.gates import BUILT_IN
from tests.support.gates import ITEM, check_both, check_refused


@pytest.mark.parametrize(
    ("gate", "value", "passing", "failing"),
    [
        ("equals", "yes", ["yes"], ["Yes", "yes ", "yes!", ""]),
        ("equals", 7, ["7"], ["7.0"]),
        ("equals", "{{answer}}", ["3.5"], ["3x5", "{{answer}}"]),
        ("contains", "ell", ["hello", "ell"], ["HELLO", "el l", ""]),
        ("icontains", "ELL", ["hello", "HELLO"], ["help"]),
        ("contains-any", "one,two", ["two", "someone"], ["three", ""]),
        ("contains-any", ["a, b", "c"], ["a, b", "c"], ["a b"]),
        ("contains-all", "one, two", ["two one", "onetwo"], ["one", "two", ""]),
        ("contains-all", ["{{extra.word}}"], ["a.b"], ["axb"]),
        ("starts-with", "def ", ["def f():"], [" def f():", "Def f"]),
        ("regex", r"^\d{2}$", ["42"], ["4", "421", "x42"]),
        ("regex", "{{extra.word}}$", ["is a.b"], ["is axb", "a.b!"]),
        ("levenshtein", "2:hello", ["hello", "hallo", "hell", "helloxy"], ["hal", "help me"]),
        ("levenshtein", {"most": 0, "text": "{{answer}}"}, ["3.5"], ["3.6"]),
    ],
)
def test_a_gate_passes_these_and_its_twin_the_others(
    gate: str, value: Any, passing: list[str], failing: list[str]
) -> None:
    check_both(gate, value, passing, failing)


@pytest.mark.parametrize(
    ("gate", "value", "reason"),
    [
        ("contains", None, "needs a text, not None"),
        ("equals", True, "needs a text, not True"),
        ("contains-any", None, "needs texts with commas between"),
        ("contains-any", "one,", "needs texts that are not empty"),
        ("contains-all", ["a", " "], "needs texts that are not empty"),
        ("contains-all", [], "needs texts with commas between"),
        ("regex", "(", "is no regular expression of RE2: missing ): ("),
        ("regex", r"(a)\1", "is no regular expression of RE2: invalid escape sequence"),
        ("levenshtein", "hello", "needs the most edits and a text, as in 3:hello"),
        ("levenshtein", {"most": -1, "text": "hello"}, "needs the most edits"),
    ],
)
def test_a_value_that_a_gate_cannot_take_is_refused_with_the_reason(gate: str, value: Any, reason: str) -> None:
    check_refused(gate, value, reason)


@pytest.mark.parametrize(
    ("gate", "value", "text", "message"),
    [
        ("equals", "{{answer}}", "3.5", "be '3.5'"),
        ("icontains", "ELL", "hello", "contain, in any case, 'ELL'"),
        ("contains-any", "one,two", "two", "contain any of 'one', 'two'"),
        ("contains-all", ["{{extra.word}}"], "a.b", "contain all of 'a.b'"),
        ("starts-with", "def ", "def f():", "start with 'def '"),
        ("regex", r"^\d{2}$", "42", r"match the regular expression '^\\d{2}$'"),
        ("levenshtein", "2:hello", "hallo", "be within 2 edits of 'hello'"),
    ],
)
def test_a_twin_says_what_the_answer_must_not_do(gate: str, value: Any, text: str, message: str) -> None:
    failure = BUILT_IN[f"not-{gate}"](text, ITEM, value)
    assert failure is not None and failure.message == f"The answer must not {message}."
