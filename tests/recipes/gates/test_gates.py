"""What the built-in gates pass, and what they say of what they do not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from batchyard.recipes import Answer
from recipes.gates import BUILT_IN, LINEAR, OF_ANSWERS, parse, subject
from tests.support.gates import ITEM, NAME


def test_some_gates_look_at_what_is_known_of_an_answer_beside_its_text() -> None:
    answer = Answer(ok=True, text="hello", finish_reason="length", seconds=1.5)
    names = ["equals", "finish-reason", "not-finish-reason", "latency", "not-latency"]
    assert [subject(name, answer) for name in names] == ["hello", "length", "length", "1.5", "1.5"]
    unknown = Answer(ok=True, text="hello")
    assert [subject(name, unknown) for name in ("finish-reason", "latency")] == ["", ""]
    assert set(OF_ANSWERS) == {*names[1:], "external"}


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


@pytest.mark.parametrize(("gate", "value"), [("regex", "(a+)+$"), ("is-json", {"type": "string", "pattern": "(a+)+$"})])
def test_patterns_take_linear_time(gate: str, value: Any) -> None:
    text = "a" * 50_000 + "!"
    began = time.process_time()
    assert BUILT_IN[gate](text if gate == "regex" else f'"{text}"', ITEM, value) is not None
    assert time.process_time() - began < 10


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
