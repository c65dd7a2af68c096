"""What a recipe is sent for an output line of the core."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from batchyard import output_lines
from batchyard.recipes.program import Request
from tasks.jobs.intake.requests import answer_of

MARK = {"type": "object", "properties": {"mark": {"type": "integer", "maximum": 10}}, "required": ["mark"]}


def answered(text: str, **structure: Any) -> Any:
    body = {
        "choices": [{"message": {"content": text}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    line = output_lines.line("a", 200, orjson.dumps(body), None)
    request = Request("judge", "/v1/chat/completions", 1, 0, "mini", {}, structure, seed=7)
    return answer_of(line, 0.5, request)


@pytest.mark.parametrize(
    ("structure", "kept", "broken"),
    [
        ({"json": MARK}, '{"mark": 7}', '{"mark":10 \n\n'),
        ({"json": MARK}, '{"mark": 10, "why": ""}', '{"mark": 11}'),
        ({"json": {"patternProperties": {"^a": {}}}}, '{"a": 1}', '{"a": 1'),
        ({"json": {"$ref": "#/nowhere"}}, "1", "one"),
        ({"choice": ["0", "1"]}, "1", "2"),
    ],
)
def test_an_answer_that_breaks_the_form_it_was_asked_for_is_an_error_without_a_text(
    structure: dict[str, Any], kept: str, broken: str
) -> None:
    answer = answered(kept, **structure)
    assert (answer.ok, answer.text, answer.error) == (True, kept, None)
    answer = answered(broken, **structure)
    assert (answer.ok, answer.text, answer.error["code"]) == (False, "", "structured_output_violated")
    assert repr(broken) in answer.error["message"] and "finish_reason length" in answer.error["message"]
    assert (answer.status_code, answer.output_tokens, answer.seconds, answer.seed) == (200, 2, 0.5, 7)


def test_an_answer_of_no_form_is_taken_as_it_is() -> None:
    answer = answered("anything")
    assert (answer.ok, answer.text, answer.finish_reason, answer.input_tokens) == (True, "anything", "length", 3)
