"""An answer has the form that its request asks for, or is counted as invalid; no schema takes longer than it may."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from batchyard.comparing.schemas import schema_of
from batchyard.endpoints import forms, output_lines

_NEXT = [f"#/$defs/{depth + 1}" for depth in range(40)]
ENDLESS: dict[str, Any] = {
    "$ref": "#/$defs/0",
    "$defs": {str(depth): {"$ref": after, "$dynamicRef": after} for depth, after in enumerate(_NEXT)} | {"40": {}},
}
"""References that jsonschema follows two to the 40 times for a keyword that looks at what others have evaluated."""
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def is_invalid(request: dict[str, Any], body: Any, seconds: float = 60.0) -> bool:
    answer = output_lines.line("a", 200, json.dumps(body).encode(), None)
    return forms.Checks(seconds).is_invalid(json.dumps(request), answer)


def said(*texts: str | None, **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text, **message}, "finish_reason": "stop"} for text in texts]}


@pytest.mark.parametrize(
    ("asking", "valid", "invalid"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
            ['{"n": 1}', ' {"n": 123456789012345678901234}\n'],
            ['{"n": "1"}', "{}", '{"n": 1', "n: 1", "[" * 100_000],
        ),
        ({"response_format": {"type": "json_object"}}, ["{}"], ["[]", "{", "NaN"]),
        ({"response_format": {"type": "text"}}, ["{"], []),
        ({"response_format": "verbose_json"}, ["hello"], []),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}}, ['{"n": 1}'], ["1"]),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, ['{"n": 1}'], ["1"]),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, ['{"n": 1}'], ["1"]),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ["yes"], ["Yes", "maybe"]),
        ({"structured_outputs": {"regex": "[0-9]+"}}, ["12"], ["12 apples"]),
        ({"structured_outputs": {"grammar": "root ::= x"}}, ["y"], []),
        ({"guided_json": SCHEMA}, ['{"n": 1}'], ["1"]),
        ({}, ["{"], []),
    ],
)
def test_an_answer_without_the_form_that_was_asked_for_is_invalid(
    asking: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    assert [text for text in (*valid, *invalid) if is_invalid(asking, said(text))] == invalid


@pytest.mark.parametrize(
    ("body", "invalid"),
    [
        (said("{}", "{"), True),
        (said(None), True),
        (said(None, refusal="No."), False),
        (said(None, tool_calls=[{"id": "c"}]), False),
        ({"output": [{"content": [{"type": "output_text", "text": "{"}]}]}, True),
        ({"content": [{"type": "text", "text": "{}"}]}, False),
    ],
)
def test_each_output_counts_but_for_refusals_and_calls(body: Any, invalid: bool) -> None:
    assert is_invalid({"response_format": {"type": "json_object"}}, body) is invalid


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no such type"},
        {"$schema": 5},
        {"patternProperties": {"a": {}}},
        {"unevaluatedProperties": False, **ENDLESS},
        {"title": "x", "$ref": "#/title"},
        {"pattern": "(?=look)"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"$ref": "http://127.0.0.1:1/schema"},
        {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "(a+)+$"}}},
        {"description": "x" * 100_000, "type": "string"},
        [],
    ],
)
def test_an_answer_to_a_schema_that_cannot_be_checked_need_only_be_json(schema: Any) -> None:
    asking = {"structured_outputs": {"json": schema}}
    assert not is_invalid(asking, said(json.dumps({"a": "a" * 40 + "!"})))
    assert is_invalid(asking, said("{"))


def test_a_schema_whose_references_multiply_its_work_ends_the_checks() -> None:
    doubled = {"allOf": [{"$ref": "#/$defs/0"}] * 2}
    schema = {
        "$defs": {str(depth): {"allOf": [{"$ref": f"#/$defs/{depth + 1}"}] * 2} for depth in range(30)} | {"30": {}}
    }
    checks, answer = forms.Checks(0.2), output_lines.line("a", 200, json.dumps(said("1")).encode(), None)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="schema takes too long"):
        checks.is_invalid(json.dumps({"guided_json": schema | doubled}), answer)
    assert time.monotonic() - begun < 60
    assert not checks.is_invalid(json.dumps({"guided_json": {"type": "string"}}), answer), "nothing more is checked"


def test_patterns_and_unique_items_take_linear_time() -> None:
    checked = {"properties": {"a": {"pattern": "^(a+)+$"}, "b": {"uniqueItems": True}}}
    validator = schema_of(checked)
    assert validator is not None
    begun = time.monotonic()
    assert not validator.is_valid({"a": "a" * 40 + "!"})
    assert validator.is_valid({"b": [{"n": n} for n in range(20_000)]})
    assert not validator.is_valid({"b": [{"n": 1, "m": 2}, {"m": 2, "n": 1}]})
    assert time.monotonic() - begun < 10
