"""What a recipe is sent for an output line of the core; an answer that cannot be used says why."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from batchyard.endpoints import output_lines
from batchyard.recipes import Answer, Failure
from batchyard.recipes.program import Request
from recipes.answers import answer_of, failure_of, may_better, unanswered

MARK = {"type": "object", "properties": {"mark": {"type": "integer", "maximum": 10}}, "required": ["mark"]}


def answered(text: str | None, message: Any = None, finish_reason: str = "length", **structure: Any) -> Answer:
    body = {
        "choices": [{"message": {"content": text, **(message or {})}, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    line = output_lines.line("a", 200, orjson.dumps(body), None)
    request = Request("judge", "/v1/chat/completions", 1, 0, "mini", {}, structure, seed=7)
    return answer_of(line, 0.5, request)


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (Answer(ok=True, text="yes"), None),
        (Answer(ok=True, text=" \n"), Failure("empty_answer", "The answer has no text.")),
        (Answer(ok=False, error={"code": "late", "message": "Too late."}), Failure("late", "Too late.")),
        (Answer(ok=False, error={"code": None}), Failure("no_answer", "There is no answer.")),
        (Answer(ok=False), Failure("no_answer", "There is no answer.")),
    ],
)
def test_why_an_answer_cannot_be_used(answer: Answer, failure: Failure | None) -> None:
    assert failure_of(answer) == failure


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
    assert answer.error is not None
    assert (answer.ok, answer.text, answer.error["code"]) == (False, "", "structured_output_violated")
    assert repr(broken) in answer.error["message"] and "finish_reason length" in answer.error["message"]
    assert (answer.status_code, answer.output_tokens, answer.seconds, answer.seed) == (200, 2, 0.5, 7)


def test_an_answer_of_no_form_is_taken_as_it_is() -> None:
    answer = answered("anything")
    assert (answer.ok, answer.text, answer.finish_reason, answer.input_tokens) == (True, "anything", "length", 3)


@pytest.mark.parametrize(
    ("finish_reason", "message", "code"),
    [
        ("length", {"reasoning": "let me see"}, "reasoning_only"),
        ("stop", {"refusal": "I will not."}, "refusal"),
        ("content_filter", {}, "content_filter"),
        ("stop", {}, "empty_answer"),
    ],
)
def test_an_answer_without_a_text_is_unanswered_with_the_reason(
    finish_reason: str, message: dict[str, Any], code: str
) -> None:
    answer = answered(None, message, finish_reason)
    assert (answer.ok, answer.text, answer.finish_reason) == (False, "", finish_reason)
    assert answer.error is not None and answer.error["code"] == code and answer.error == unanswered(answer)
    assert not may_better(answer)
    assert answer.extra == message
    assert answer.output_tokens == 2


def test_a_tool_call_is_an_answer_without_a_text_to_judge() -> None:
    answer = answered(None, {"tool_calls": [{"id": "c1"}]}, "tool_calls")
    assert (answer.ok, answer.text, answer.extra) == (True, "", {"tool_calls": [{"id": "c1"}]})
    assert (unanswered(answer) or {})["code"] == "tool_call" and unanswered(answered("", {})) is None
