"""Events of a stream: the official clients put the same answer together that a whole response has."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from batchyard.endpoints import stream_events
from batchyard.endpoints.catalog import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from inference.engines import echo_bodies
from inference.engines.echo_bodies import Generated

ANSWER = Generated("three  wagons stand here", 4, "stop")


def body_of(path: str, request: dict[str, Any]) -> dict[str, Any]:
    return echo_bodies.response(path, {"model": "m", **request}, 1, ANSWER)


def streamed(path: str, request: dict[str, Any], body: dict[str, Any]) -> bytes:
    return b"".join(event.data for event in stream_events.events(path, request, body, stream_events.words))


def transport(path: str, request: dict[str, Any], body: dict[str, Any]) -> httpx.MockTransport:
    """Answer every request with this stream."""
    content = streamed(path, request, body)
    headers = {"content-type": "text/event-stream"}
    return httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=content))


def openai_client(path: str, request: dict[str, Any], body: dict[str, Any]) -> openai.OpenAI:
    http = httpx.Client(transport=transport(path, request, body))
    return openai.OpenAI(base_url="http://x/v1", api_key="k", http_client=http)


def test_a_chat() -> None:
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hi"}],
        "stream_options": {"include_usage": True},
    }
    body = body_of(CHAT.path, request)
    client = openai_client(CHAT.path, request, body)
    with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "hi"}]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ANSWER.text
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None and final.usage.completion_tokens == 4


def test_usage_comes_only_where_it_is_asked_for() -> None:
    body = body_of(CHAT.path, {"messages": []})
    assert b'"usage"' not in streamed(CHAT.path, {}, body)
    assert b'"usage"' in streamed(CHAT.path, {"stream_options": {"include_usage": True}}, body)


def test_tool_calls_and_reasoning_of_a_chat_are_kept() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    body = {**body_of(CHAT.path, {}), "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    client = openai_client(CHAT.path, {}, body)
    with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "hi"}]) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.tool_calls is not None and final.message.tool_calls[0].function.name == "f"
    assert final.finish_reason == "tool_calls"
    assert getattr(final.message, "reasoning_content", None) == "hm"


def test_a_completion_of_two_samples() -> None:
    body = body_of(COMPLETIONS.path, {"prompt": "hi", "n": 2})
    client = openai_client(COMPLETIONS.path, {}, body)
    texts = {0: "", 1: ""}
    for chunk in client.completions.create(model="m", prompt="hi", n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: ANSWER.text, 1: ANSWER.text}


LOGPROBS = [
    (CHAT, {"content": [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}], "refusal": None}),
    (COMPLETIONS, {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}], "text_offset": [0]}),
]


@pytest.mark.parametrize("text", ["", "a", "a b"])
@pytest.mark.parametrize(("endpoint", "logprobs"), LOGPROBS)
def test_the_logprobs_of_the_chunks_are_those_of_the_whole_answer(endpoint: Any, logprobs: Any, text: str) -> None:
    output = {"message": {"role": "assistant", "content": text}} if endpoint is CHAT else {"text": text}
    choice = {"index": 0, **output, "logprobs": logprobs, "finish_reason": "stop", "stop_reason": "."}
    events = stream_events.events(endpoint.path, {}, {"choices": [choice]}, stream_events.words)
    chunks = [json.loads(event.data[6:]) for event in events if event != stream_events.DONE]
    assert [part["logprobs"] for chunk in chunks for part in chunk["choices"] if part["logprobs"]] == [logprobs]
    assert chunks[-1]["choices"][0]["stop_reason"] == "."


def test_a_response() -> None:
    body = body_of(RESPONSES.path, {"input": "hi"})
    client = openai_client(RESPONSES.path, {}, body)
    with client.responses.stream(model="m", input="hi") as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert deltas == final.output_text == ANSWER.text
    assert final.usage is not None and final.usage.output_tokens == 4


def test_a_message() -> None:
    body = body_of(MESSAGES.path, {"messages": []})
    content, headers = streamed(MESSAGES.path, {}, body), {"content-type": "text/event-stream"}
    answer = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, content=content))
    http = httpx2.Client(transport=answer)
    client = anthropic.Anthropic(base_url="http://x", api_key="k", http_client=http)
    with client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as stream:
        assert "".join(stream.text_stream) == ANSWER.text
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 4)


@pytest.mark.parametrize("text", ["", " ", "a", " a  b ", "a\nb c"])
def test_words_are_the_whole_text(text: str) -> None:
    assert "".join(stream_events.words(text)) == text


@pytest.mark.parametrize("path", stream_events.STREAMED)
def test_an_error_has_the_form_of_its_dialect(path: str) -> None:
    fault = {"message": "gone", "type": "server_error", "param": None, "code": "engine_died"}
    event = stream_events.error(path, fault).decode()
    data = json.loads(event.partition("data: ")[2])
    assert event.endswith("\n\n")
    assert "gone" in (data["message"] if path == RESPONSES.path else data["error"]["message"])


def test_a_call_of_a_function_is_streamed_with_its_arguments() -> None:
    arguments = '{"fruit": "pear"}'
    call = {"type": "function_call", "id": "fc-1", "call_id": "c", "status": "completed"}
    call |= {"name": "price", "arguments": arguments}
    body = body_of(RESPONSES.path, {"input": "hi"}) | {"output": [call]}
    lines = streamed(RESPONSES.path, {}, body).decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress", "output_item.added"),
        *("function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(7))
    assert events[2]["item"]["arguments"] == "" and "content" not in events[2]["item"]
    assert (events[3]["delta"], events[4]["arguments"], events[4]["name"]) == (arguments, arguments, "price")
    client = openai_client(RESPONSES.path, {}, body)
    with client.responses.stream(model="m", input="hi") as stream:
        assert stream.get_final_response().output[0].to_dict()["arguments"] == arguments
