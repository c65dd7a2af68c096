"""The loop of agents: turns until the model is done or a limit is reached, and what the model is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from batchyard.recipes import (
    AgentRun,
    Answer,
    Call,
    Called,
    Flow,
    Item,
    Options,
    Result,
    Stage,
    agent,
    play,
    recipe,
    tool,
)
from batchyard.recipes.agent import MAX_CALLS
from batchyard.recipes.program import Request

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


@tool("add", "retriable")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool("submit", "once")
def submit(answer: str) -> str:
    return answer


def asks(*calls: tuple[str, Any], text: str = "", tokens: int = 10, endpoint: str = CHAT) -> Answer:
    """An answer with these calls, as an engine's response has them."""
    written = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in calls]
    if endpoint == CHAT:
        tool_calls: list[Any] = [
            {"id": f"chatcmpl-{name}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in written
        ]
    else:
        tool_calls = [
            {"type": "function_call", "id": "fc-1", "call_id": "x", "name": name, "arguments": arguments}
            for name, arguments in written
        ]
    extra = {"tool_calls": tool_calls} if calls else {}
    return Answer(ok=True, text=text, input_tokens=100, output_tokens=tokens, extra=extra)


def call(wanted: Call) -> Called:
    tools = {each.name: each for each in (add, submit)}
    return Called(True, tools[wanted.tool].function(**wanted.arguments))


def played(
    answers: Sequence[Answer], make: Callable[[Call], Called] = call, endpoint: str = CHAT, **options: Any
) -> tuple[AgentRun, list[Request]]:
    """Run an agent over these answers. Return its run, and what it has asked."""
    runs: list[AgentRun] = []
    requests: list[Request] = []
    left = iter(answers)

    @recipe("adder", Options, stages=[Stage("turn", endpoint)], loops=True)
    def adder(item: Item, _: Options) -> Flow:
        run = yield from agent(
            item.chat(), stage="turn", model="mini", tools=[add, submit], endpoint=endpoint, **options
        )
        runs.append(run)
        return Result(run.text)

    def answer(request: Request) -> Answer:
        requests.append(request)
        return next(left)

    play(adder, Item(1, "a", {"prompt": "What is 2 + 3?"}), Options(), answer, call=make)
    return runs[0], requests


def test_a_model_calls_tools_side_by_side_sees_their_results_and_is_done_when_it_calls_none() -> None:
    answers = [asks(("add", {"a": 2, "b": 3}), ("add", {"a": 4, "b": 5})), asks(text="5 and 9")]
    run, (first, second) = played(answers, temperature=0.5)
    assert (run.stop, run.text, len(run.turns)) == ("done", "5 and 9", 2)
    functions = [entry["function"] for entry in first.body["tools"]]
    assert functions[0] == {"name": "add", "description": "Add two numbers.", "parameters": add.parameters}
    assert first.body["temperature"] == 0.5
    _, said, *results = second.body["messages"]
    assert [each["id"] for each in said["tool_calls"]] == ["call00100", "call00101"]
    assert results == [
        {"role": "tool", "tool_call_id": "call00100", "content": "5"},
        {"role": "tool", "tool_call_id": "call00101", "content": "9"},
    ]
    assert run.history[-1] == {"role": "assistant", "content": "5 and 9"}


def test_responses_are_asked_with_items_of_calls_and_their_outputs() -> None:
    answers = [asks(("add", {"a": 2, "b": 3}), text="Wait.", endpoint=RESPONSES), asks(text="5", endpoint=RESPONSES)]
    run, (first, second) = played(answers, endpoint=RESPONSES, max_tokens=50)
    assert (run.stop, run.text) == ("done", "5")
    assert first.body["tools"][0]["name"] == "add" and first.body["max_output_tokens"] == 50
    assert second.body["max_output_tokens"] == 40
    assert second.body["input"][1:] == [
        {"type": "message", "role": "assistant", "content": "Wait."},
        {"type": "function_call", "call_id": "call00100", "name": "add", "arguments": '{"a": 2, "b": 3}'},
        {"type": "function_call_output", "call_id": "call00100", "output": "5"},
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("ad", {"a": 1}, "Error: tool_not_found: No tool is named 'ad'. Did you mean 'add'? Available: add, submit."),
        ("add", '{"a": 1,', "Error: invalid_arguments: The arguments are not JSON: "),
        ("add", "[1, 2]", "Error: invalid_arguments: The arguments are not a JSON object: [1, 2]"),
        ("add", '{"a": NaN}', "Error: invalid_arguments: The arguments are not JSON: "),
        ("add", '{"a": "\\ud800"}', "Error: invalid_arguments: The arguments are not JSON: "),
        ("add", '{"a": ' + "[" * 300 + "]" * 300 + "}", "Error: invalid_arguments: The arguments are not JSON: "),
    ],
)
def test_what_a_model_does_wrong_it_is_told_in_place_of_a_result(name: str, arguments: Any, told: str) -> None:
    made: list[Call] = []

    def make(wanted: Call) -> Called:
        made.append(wanted)
        return call(wanted)

    run, (_, second) = played([asks((name, arguments), ("add", {"a": 1, "b": 1})), asks(text="2")], make)
    _, said, wrong, right = second.body["messages"]
    assert wrong["content"].startswith(told) and right["content"] == "2"
    assert len(made) == 1 and run.stop == "done"
    for each in said["tool_calls"]:
        assert isinstance(json.loads(each["function"]["arguments"]), dict)  # else a chat template fails


def test_what_a_tool_fails_with_the_model_is_told() -> None:
    failed = Called(False, error={"code": "tool_timeout", "message": "It ran longer than 30 seconds."})
    _, (_, second) = played([asks(("add", {"a": 1, "b": 2})), asks(text="?")], lambda _: failed)
    assert second.body["messages"][-1]["content"] == "Error: tool_timeout: It ran longer than 30 seconds."


def test_a_turn_has_a_limit_of_calls() -> None:
    many = [("add", {"a": number, "b": 0}) for number in range(MAX_CALLS + 2)]
    run, _ = played([asks(*many), asks(text="done")])
    assert [use.called.ok for use in run.turns[0].uses] == [True] * MAX_CALLS + [False] * 2


ADDS = ("add", {"a": 1, "b": 1})


@pytest.mark.parametrize(
    ("answers", "options", "stop", "turns"),
    [
        ([asks(ADDS)] * 9, {"max_turns": 3}, "max_turns", 3),
        ([asks(ADDS)] * 9, {"max_tokens": 25}, "max_tokens", 3),
        ([asks(ADDS)] * 9, {"budget": 200}, "budget", 2),
        ([asks(ADDS), asks(("submit", {"answer": "2"}), ADDS)], {"stop_tool": "submit"}, "stop_tool", 2),
        ([asks(("submit", "no")), asks(("submit", {"answer": "2"}))], {"stop_tool": "submit"}, "stop_tool", 2),
        ([asks(ADDS), Answer(ok=False, error={"code": "context_length_exceeded"})], {}, "no_answer", 2),
    ],
)
def test_it_ends_at_each_limit(answers: list[Answer], options: dict[str, Any], stop: str, turns: int) -> None:
    run, requests = played(answers, **options)
    assert (run.stop, len(run.turns), len(requests)) == (stop, turns, turns)
    assert (run.error is not None) == (stop == "no_answer")


def test_the_last_request_is_limited_to_the_tokens_that_are_left() -> None:
    _, requests = played([asks(ADDS, tokens=30), asks(text="done")], max_tokens=40, max_completion_tokens=35)
    assert [request.body["max_completion_tokens"] for request in requests] == [35, 10]
