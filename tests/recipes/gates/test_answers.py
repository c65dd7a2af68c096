"""Gates over finish reasons and seconds look at what is known of an answer beside its text."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.gates import BUILT_IN
from tests.support.gates import ITEM, check_both, check_refused


@pytest.mark.parametrize(
    ("gate", "value", "passing", "failing"),
    [
        ("finish-reason", "stop", ["stop"], ["length", ""]),
        ("finish-reason", "stop, tool_calls", ["tool_calls"], ["length"]),
        ("latency", "500ms", ["0.5", "0"], ["0.501", "12.0", ""]),
        ("latency", "2 s", ["2.0"], ["2.1"]),
    ],
)
def test_a_gate_passes_these_and_its_twin_the_others(
    gate: str, value: Any, passing: list[str], failing: list[str]
) -> None:
    check_both(gate, value, passing, failing)


@pytest.mark.parametrize(
    ("gate", "value", "reason"),
    [
        ("latency", 500, "needs a time with its unit, as in 500ms or 2s, not 500"),
        ("latency", "500", "needs a time with its unit"),
        ("finish-reason", None, "needs texts with commas between"),
    ],
)
def test_a_value_that_a_gate_cannot_take_is_refused_with_the_reason(gate: str, value: Any, reason: str) -> None:
    check_refused(gate, value, reason)


@pytest.mark.parametrize(
    ("gate", "value", "text", "message"),
    [
        ("finish-reason", "length, stop", "stop", "end with length or stop"),
        ("latency", "500ms", "0.4", "take 0.5 s or less"),
    ],
)
def test_a_twin_says_what_the_answer_must_not_do(gate: str, value: Any, text: str, message: str) -> None:
    failure = BUILT_IN[f"not-{gate}"](text, ITEM, value)
    assert failure is not None and failure.message == f"The answer must not {message}."
