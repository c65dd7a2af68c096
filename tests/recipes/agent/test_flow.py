"""Recipe agent over the examples: turns, results and scores; what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.recipes import Answer, FlowRecipe, InvalidItem, Item
from batchyard.recipes.program import Request
from recipes.agent.options import AgentLoop
from tests.recipes.agent.made import AGENT, ROWS, calls, echoed, options, run


def test_the_examples_call_a_tool_and_their_results_are_scored() -> None:
    results, report = run(ROWS, reward="exact", ground_truth="answer")
    assert [item.state for item in results.ended] == ["completed"] * 4
    first, *_, unknown = (item.result for item in results.ended)
    assert (first["text"], first["stop"], first["score"]) == ("6", "done", 1.0)
    asked, said = first["turns"]
    assert asked["tool_calls"] == [
        {
            "id": "call00100",
            "name": "price",
            "arguments": '{"fruit": "apple", "pieces": 2}',
            "result": "6",
            "error": None,
        }
    ]
    assert (said["text"], said["tool_calls"]) == ("6", [])
    assert unknown["turns"][0]["tool_calls"][0]["error"] == "tool_error" and unknown["score"] == 0.0
    metrics = report.metrics
    assert (metrics["items"], metrics["stops"], metrics["turns"]) == (4, {"done": 4}, 8)
    assert (metrics["tool_calls"], metrics["tool_errors"]) == ({"price": 4}, {"tool_error": 1})
    assert metrics["score"]["mean"] == 0.75 and metrics["score"]["n"] == 4


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_one_answer_stands_beside_that_of_all(endpoint: str, name: str) -> None:
    limits: list[int] = []

    def answer(item: Item, request: Request) -> Answer:
        limits.extend(value for key, value in request.body.items() if key.startswith("max_") and value is not None)
        return echoed(item, request)

    results, _ = run(ROWS[:1], answer, endpoint=endpoint, sampling={name: 90}, max_tokens=100)
    assert results.ended[0].state == "completed"
    assert limits[0] == 90 and limits[-1] <= 90 and len(limits) == 2


def test_responses_lead_to_the_same_results() -> None:
    chat, responses = (
        run(ROWS, endpoint=endpoint, reward="exact", ground_truth="answer")[0] for endpoint in ("chat", "responses")
    )
    for item, other in zip(chat.ended, responses.ended, strict=True):
        keep = ("text", "stop", "score")
        assert [item.result[name] for name in keep] == [other.result[name] for name in keep]
        assert [turn["tool_calls"] for turn in item.result["turns"]] == [
            turn["tool_calls"] for turn in other.result["turns"]
        ]


def test_the_tool_that_hands_over_the_result_says_it() -> None:
    results, _ = run(ROWS[:1], stop_tool="price")
    assert (results.ended[0].result["text"], results.ended[0].result["stop"]) == ("6", "stop_tool")


def test_an_item_whose_request_fails_is_failed_with_its_turns_and_not_scored() -> None:
    def answer(item: Item, request: Request) -> Answer:
        if len(request.body["messages"]) > 1:
            return Answer(ok=False, error={"code": "context_length_exceeded", "message": "too long"}, status_code=400)
        return echoed(item, request)

    results, _ = run(ROWS[:1], answer, reward="exact", ground_truth="answer")
    (item,) = results.ended
    assert (item.state, item.error) == ("failed", {"code": "context_length_exceeded", "message": "too long"})
    assert [turn["text"] for turn in item.result["turns"]] == [item.columns["prompt"].partition(" <")[0], None]
    assert "score" not in item.result


def test_a_reward_sees_the_messages_and_a_row_without_one_is_not_scored() -> None:
    results, report = run([{"prompt": "hello"}])
    assert "score" not in results.ended[0].result and "score" not in report.metrics


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stop_tool": "prize"}, "stop_tool: it is none of the tools; did you mean 'price'?"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice: there are no tools"),
        ({"endpoint": "responses", "logprobs": True}, "logprobs: Responses have none"),
        ({"reward": "exakt"}, "reward: No reward is named 'exakt'"),
        ({"extract": "nothing"}, "extract: "),
    ],
)
def test_options_that_cannot_be_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        options(**values)


def test_a_column_with_the_name_of_a_result_is_refused_and_messages_are_not() -> None:
    assert isinstance(AGENT, FlowRecipe) and AGENT.columns is not None
    with pytest.raises(InvalidItem, match="'stop'"):
        AGENT.columns(options(), {"prompt": "x", "stop": "y"})
    assert AGENT.columns(options(), {"messages": []}) == []


def test_the_tokens_of_responses_are_limited_by_their_own_name() -> None:
    values = AgentLoop(model="m", endpoint="responses", sampling={"max_tokens": 7}).parameters()
    assert (values["max_output_tokens"], values.get("max_tokens")) == (7, None)


def test_a_probe_asks_as_the_first_turn_does() -> None:
    assert isinstance(AGENT, FlowRecipe) and AGENT.probe is not None
    (ask,) = AGENT.probe(options(tool_choice="required"))
    assert ask.sampling["tool_choice"] == "required" and ask.sampling["tools"][0]["function"]["name"] == "price"


def test_calls_side_by_side_are_in_their_order() -> None:
    results, _ = run([{"prompt": calls(fruit="apple") + calls(fruit="plum", pieces=2)}])
    uses = results.ended[0].result["turns"][0]["tool_calls"]
    assert [(use["id"], use["result"]) for use in uses] == [("call00100", "3"), ("call00101", "4")]
