"""Gates over JSON find it in the text and hold it to a schema."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.gates import BUILT_IN
from tests.support.gates import ITEM, NAME, check_both, check_refused


@pytest.mark.parametrize(
    ("gate", "value", "passing", "failing"),
    [
        ("is-json", None, ['{"a": 1}', "[1]", " 3 ", "null"], ["", "{a: 1}", "{} {}", "NaN", "[" * 100_000]),
        ("is-json", NAME, ['{"name": "bob"}'], ['{"name": "Bob"}', '{"nam": "bob"}', "[]", "bob"]),
        ("is-json", '{"type": "integer"}', ["3"], ["3.5", '"3"']),
        ("contains-json", None, ["so: [1, 2].", 'x {"a": {}} y', "[[]"], ["3", "{a}", "[" * 3000, ""]),
        ("contains-json", NAME, ['{} or {"name": "bob"}'], ["{}", 'name: "bob"']),
    ],
)
def test_a_gate_passes_these_and_its_twin_the_others(
    gate: str, value: Any, passing: list[str], failing: list[str]
) -> None:
    check_both(gate, value, passing, failing)


@pytest.mark.parametrize(
    ("gate", "value", "reason"),
    [
        ("is-json", "{", "needs a JSON schema: unexpected end of data"),
        ("is-json", [1], "needs a JSON schema, which is an object"),
        ("is-json", {"type": "text"}, "needs a JSON schema: 'text' is not valid under"),
        ("is-json", {"properties": {"a": {"pattern": "("}}}, "missing"),
        ("is-json", {"patternProperties": {"a": {}}}, "takes no schema with patternProperties"),
        ("is-json", {"$ref": "http://localhost/schema"}, "takes no reference to another document"),
    ],
)
def test_a_value_that_a_gate_cannot_take_is_refused_with_the_reason(gate: str, value: Any, reason: str) -> None:
    check_refused(gate, value, reason)


@pytest.mark.parametrize(
    ("gate", "value", "text", "message"),
    [
        ("is-json", None, "3", "be JSON"),
        ("is-json", NAME, '{"name": "bob"}', "be JSON that follows the schema"),
        ("contains-json", None, "so: [1]", "contain a JSON object or list"),
    ],
)
def test_a_twin_says_what_the_answer_must_not_do(gate: str, value: Any, text: str, message: str) -> None:
    failure = BUILT_IN[f"not-{gate}"](text, ITEM, value)
    assert failure is not None and failure.message == f"The answer must not {message}."
