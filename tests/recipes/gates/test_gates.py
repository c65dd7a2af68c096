"""What the built-in gates pass, and what they say of what they do not."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from batchyard.recipes import Answer, Item
from recipes.gates import BUILT_IN, LINEAR, OF_ANSWERS, columns, parse, subject

ITEM = Item(0, "a", {"answer": "3.5", "extra": {"word": "a.b"}})
NAME = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["name"]}


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
        ("is-json", None, ['{"a": 1}', "[1]", " 3 ", "null"], ["", "{a: 1}", "{} {}", "NaN", "[" * 100_000]),
        ("is-json", NAME, ['{"name": "bob"}'], ['{"name": "Bob"}', '{"nam": "bob"}', "[]", "bob"]),
        ("is-json", '{"type": "integer"}', ["3"], ["3.5", '"3"']),
        ("contains-json", None, ["so: [1, 2].", 'x {"a": {}} y', "[[]"], ["3", "{a}", "[" * 3000, ""]),
        ("contains-json", NAME, ['{} or {"name": "bob"}'], ["{}", 'name: "bob"']),
        ("finish-reason", "stop", ["stop"], ["length", ""]),
        ("finish-reason", "stop, tool_calls", ["tool_calls"], ["length"]),
        ("latency", "500ms", ["0.5", "0"], ["0.501", "12.0", ""]),
        ("latency", "2 s", ["2.0"], ["2.1"]),
    ],
)
def test_a_gate_passes_these_and_its_twin_the_others(
    gate: str, value: Any, passing: list[str], failing: list[str]
) -> None:
    plain, twin = BUILT_IN[gate], BUILT_IN[f"not-{gate}"]
    for check in (plain.check, twin.check):
        assert check is not None
        check(value)
    for text in passing:
        assert plain(text, ITEM, value) is None, text
        failure = twin(text, ITEM, value)
        assert failure is not None and failure.category == f"not-{gate}" and failure.message.endswith(".")
    for text in failing:
        assert twin(text, ITEM, value) is None, text
        failure = plain(text, ITEM, value)
        assert failure is not None and failure.category == gate and failure.message.endswith(".")


@pytest.mark.parametrize(
    ("gate", "value", "reason"),
    [
        ("contains", None, "needs a text, not None"),
        ("equals", True, "needs a text, not True"),
        ("contains-any", None, "needs texts with commas between"),
        ("contains-all", [], "needs texts with commas between"),
        ("regex", "(", "is no regular expression of RE2: missing ): ("),
        ("regex", r"(a)\1", "is no regular expression of RE2: invalid escape sequence"),
        ("latency", 500, "needs a time with its unit, as in 500ms or 2s, not 500"),
        ("latency", "500", "needs a time with its unit"),
        ("finish-reason", None, "needs texts with commas between"),
        ("levenshtein", "hello", "needs the most edits and a text, as in 3:hello"),
        ("levenshtein", {"most": -1, "text": "hello"}, "needs the most edits"),
        ("is-json", "{", "needs a JSON schema: unexpected end of data"),
        ("is-json", [1], "needs a JSON schema, which is an object"),
        (
            "is-json",
            {"type": "text"},
            "needs a JSON schema: 'text' is not valid under",
        ),
        ("is-json", {"properties": {"a": {"pattern": "("}}}, "missing"),
        ("is-json", {"patternProperties": {"a": {}}}, "takes no schema with patternProperties"),
        ("is-json", {"$ref": "http://localhost/schema"}, "takes no reference to another document"),
    ],
)
def test_a_value_that_a_gate_cannot_take_is_refused_with_the_reason(gate: str, value: Any, reason: str) -> None:
    check = BUILT_IN[f"not-{gate}"].check
    assert check is not None
    with pytest.raises(ValueError, match=re.escape(reason)):
        check(value)


def test_some_gates_look_at_what_is_known_of_an_answer_beside_its_text() -> None:
    answer = Answer(ok=True, text="hello", finish_reason="length", seconds=1.5)
    names = ["equals", "finish-reason", "not-finish-reason", "latency", "not-latency"]
    assert [subject(name, answer) for name in names] == ["hello", "length", "length", "1.5", "1.5"]
    unknown = Answer(ok=True, text="hello")
    assert [subject(name, unknown) for name in ("finish-reason", "latency")] == ["", ""]
    assert set(OF_ANSWERS) == {*names[1:], "external"}


def test_a_verdict_of_someone_else_needs_a_name_and_is_no_gates_to_give() -> None:
    external = BUILT_IN["external"]
    assert external.check is not None and "not-external" not in BUILT_IN
    external.check("ci")
    with pytest.raises(ValueError, match="needs the name of what gives the verdict, as in external:ci, not ''"):
        external.check("")
    with pytest.raises(ValueError, match="only a Wait gets the verdict of 'ci'"):
        external("x", ITEM, "ci")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("{{answer}} or {{extra.word}}", ["answer", "extra.word"]),
        (["a", "{{answer}}"], ["answer"]),
        ({"most": 2, "text": "{{answer}}"}, ["answer"]),
        (None, []),
        (3, []),
    ],
)
def test_the_columns_that_a_value_names_are_known(value: Any, named: list[str]) -> None:
    assert columns.names(value) == named


def test_the_message_tells_a_model_what_to_mend() -> None:
    failures = [
        BUILT_IN["contains-all"]("one", ITEM, "one,two,three"),
        BUILT_IN["is-json"]('{"name": 3}', ITEM, NAME),
        BUILT_IN["not-contains"]("sorry", ITEM, "sorry"),
    ]
    assert [failure.message for failure in failures if failure is not None] == [
        "The answer does not contain 'two', 'three'.",
        "The JSON does not follow the schema: 3 is not of type 'string' at $.name.",
        "The answer must not contain 'sorry'.",
    ]


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
        ("is-json", None, "3", "be JSON"),
        ("is-json", NAME, '{"name": "bob"}', "be JSON that follows the schema"),
        ("contains-json", None, "so: [1]", "contain a JSON object or list"),
        ("finish-reason", "length, stop", "stop", "end with length or stop"),
        ("latency", "500ms", "0.4", "take 0.5 s or less"),
    ],
)
def test_a_twin_says_what_the_answer_must_not_do(gate: str, value: Any, text: str, message: str) -> None:
    failure = BUILT_IN[f"not-{gate}"](text, ITEM, value)
    assert failure is not None and failure.message == f"The answer must not {message}."


def test_an_item_without_the_column_that_a_value_names_is_told_so() -> None:
    with pytest.raises(KeyError, match="the item has no column 'label'; its columns: answer, extra"):
        BUILT_IN["equals"]("x", ITEM, "{{label}}")


@pytest.mark.parametrize(("gate", "value"), [("regex", "(a+)+$"), ("is-json", {"type": "string", "pattern": "(a+)+$"})])
def test_patterns_take_linear_time(gate: str, value: Any) -> None:
    text = "a" * 50_000 + "!"
    began = time.perf_counter()
    assert BUILT_IN[gate](text if gate == "regex" else f'"{text}"', ITEM, value) is not None
    assert time.perf_counter() - began < 1


def test_only_gates_that_take_linear_time_are_declared_so() -> None:
    assert {"regex", "not-contains-any", "latency"} <= LINEAR < set(BUILT_IN)
    assert not {"is-json", "not-contains-json", "levenshtein", "external"} & LINEAR


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("is-json", "is-json", None),
        (r"regex:^a:b\d", "regex", r"^a:b\d"),
        ("contains: x", "contains", " x"),
        ("equals:", "equals", ""),
    ],
)
def test_a_gate_is_written_as_name_and_value(text: str, name: str, value: str | None) -> None:
    assert parse(text) == (name, value)
