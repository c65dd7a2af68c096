"""Engine transformers on Responses and Messages: the answers of the chats that they are, in their shapes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from batchyard.endpoints import responses
from batchyard.endpoints.catalog import CHAT, MESSAGES, RESPONSES
from batchyard.models import ModelSpec
from inference.engines.transformers.engine import Transformers
from tests.support.rows import all_answers

GREEDY = {"model": "tiny", "temperature": 0}
TURNS = [{"role": "user", "content": "Ray"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Transformers:
    engine = Transformers(
        ModelSpec(name="tiny", engine="transformers", source=str(tiny), engine_args={"dtype": "float32"}), 60
    )
    asyncio.run(engine.start())
    return engine


def ask(engine: Transformers, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    assert Transformers.unsupported(engine.spec, endpoint, body) is None
    (answer,) = asyncio.run(all_answers(engine, endpoint, [body]))
    assert answer.body is not None
    return answer.body


def chatted(engine: Transformers, messages: list[dict[str, Any]], **parameters: Any) -> dict[str, Any]:
    return ask(engine, CHAT.path, {**GREEDY, "messages": messages, **parameters})


def test_a_response_is_the_chat_of_its_instructions_and_items(engine: Transformers) -> None:
    chat = chatted(engine, [{"role": "system", "content": "Be brief."}, *TURNS], max_tokens=12)
    items = [*TURNS[:2], {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}]
    body = {**GREEDY, "input": items, "instructions": "Be brief.", "max_output_tokens": 12, "tools": []}
    made = ask(engine, RESPONSES.path, body)
    assert responses.output(made).text == responses.output(chat).text
    assert responses.usage(made)[::2] == responses.usage(chat)[::2]
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (made["object"], made["model"], made["instructions"]) == ("response", "tiny", "Be brief.")
    alone = ask(engine, RESPONSES.path, {**GREEDY, "input": "Ray", "max_output_tokens": 12})
    assert responses.output(alone).text == responses.output(chatted(engine, TURNS[:1], max_tokens=12)).text


def test_a_message_is_the_chat_of_its_system_and_turns_and_says_why_it_ends(engine: Transformers) -> None:
    chat = chatted(engine, [{"role": "system", "content": "Be brief."}, *TURNS], max_tokens=12)
    body = {**GREEDY, "messages": TURNS, "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 12}
    made = ask(engine, MESSAGES.path, body)
    text = responses.output(made).text
    assert text is not None and text == responses.output(chat).text
    assert (made["type"], made["stop_reason"], made["stop_sequence"]) == ("message", "max_tokens", None)
    assert made["usage"] == {"input_tokens": chat["usage"]["prompt_tokens"], "output_tokens": 12}
    stop = text[3:5]
    stopped = ask(engine, MESSAGES.path, {**body, "stop_sequences": ["never said", stop]})
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
    assert responses.output(stopped).text == text[: text.index(stop)]


def test_a_refusal_names_the_parameter_of_its_endpoint(engine: Transformers) -> None:
    too_long = [
        ask(engine, RESPONSES.path, {**GREEDY, "input": "x" * 900}),
        ask(engine, MESSAGES.path, {**GREEDY, "messages": [{"role": "user", "content": "x" * 900}], "max_tokens": 1}),
        ask(engine, RESPONSES.path, {**GREEDY, "input": "Ray", "max_output_tokens": "many"}),
    ]
    assert [body["error"]["param"] for body in too_long] == ["input", "messages", "max_output_tokens"]


TOOLS = [{"name": "f"}]


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (RESPONSES.path, {"input": "a", "tools": TOOLS}, "body.tools"),
        (RESPONSES.path, {"input": "a", "reasoning": {"effort": "low"}}, "body.reasoning"),
        (RESPONSES.path, {"input": "a", "text": {"format": {"type": "json_object"}}}, "body.text"),
        (RESPONSES.path, {"input": [{"type": "function_call_output", "output": "1"}]}, "body.input[0].type"),
        (RESPONSES.path, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "body.input[0].content"),
        (MESSAGES.path, {"messages": TURNS, "tools": TOOLS}, "body.tools"),
        (MESSAGES.path, {"messages": TURNS, "thinking": {"type": "adaptive"}}, "body.thinking"),
        (MESSAGES.path, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "body.messages[0].content"),
        (MESSAGES.path, {"messages": TURNS, "system": [{"type": "image"}]}, "body.system"),
    ],
)
def test_tools_and_all_that_is_no_text_is_refused_in_validation(
    engine: Transformers, endpoint: str, body: dict[str, Any], param: str
) -> None:
    unsupported = Transformers.unsupported(engine.spec, endpoint, {"model": "tiny", **body})
    assert unsupported is not None and unsupported[0] == param


def test_parameters_that_ask_for_nothing_are_accepted(engine: Transformers) -> None:
    nothing = {
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content"],
        "store": True,
        "tools": [],
    }
    assert Transformers.unsupported(engine.spec, RESPONSES.path, {"model": "tiny", "input": "a", **nothing}) is None
    thinking = {"type": "disabled"}
    body = {"model": "tiny", "messages": TURNS, "thinking": thinking}
    assert Transformers.unsupported(engine.spec, MESSAGES.path, body) is None
