"""Live requests on the stack of the batches: the official clients, and the codes and messages of a batch's lines."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from batchyard.endpoints.base import Endpoint
from batchyard.endpoints.catalog import CHAT, EMBEDDINGS, ENDPOINTS
from batchyard.wording import without_code
from tests.contract.conftest import refusal
from tests.support.rows import until
from tests.support.stacks import RunningStack

HELLO = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BAD: list[tuple[str, Endpoint, dict[str, Any]]] = [
    ("no model", CHAT, {"model": None}),
    ("a model we do not serve", CHAT, {"model": "ecko"}),
    ("no messages", CHAT, {"messages": []}),
    ("a role that nobody has", CHAT, {"messages": [{"role": "oracle", "content": "x"}]}),
    ("a temperature that is a text", CHAT, {"temperature": "hot"}),
    ("no token", CHAT, {"max_tokens": 0}),
    ("tools of an engine without them", CHAT, {"model": "nano", "tools": [TOOL]}),
    ("a parameter of OpenAI's alone", CHAT, {"logit_bias": {"1": 2}}),
    ("an empty input", EMBEDDINGS, {"input": []}),
    ("an input of numbers and texts", EMBEDDINGS, {"input": ["a", 1]}),
    ("an endpoint that the model does not answer", EMBEDDINGS, {"model": "slow", "input": "a"}),
]


@pytest.mark.parametrize(("entry", "changes"), [pytest.param(*case, id=name) for name, *case in BAD])
def test_bad_input_is_refused_as_in_a_line_of_a_batch(
    stack: RunningStack, http: httpx.Client, entry: Endpoint, changes: dict[str, Any]
) -> None:
    body = {name: value for name, value in {"model": "echo", **entry.example, **changes}.items() if value is not None}
    line = {"custom_id": "a", "method": "POST", "url": entry.path, "body": body}
    (in_batch,) = stack.wait(stack.submit([line], endpoint=entry.path)).errors.data
    answer = http.post(entry.path, json=body)
    live = refusal(answer)
    assert answer.status_code in (400, 404)
    assert (live["code"], without_code(live["message"], live["code"])) == (in_batch.code, in_batch.message)
    assert live["param"] == in_batch.param.removeprefix("body.")


@pytest.mark.parametrize("entry", [pytest.param(entry, id=path) for path, entry in ENDPOINTS.items()])
def test_each_endpoint_answers_or_says_that_the_model_does_not(http: httpx.Client, entry: Endpoint) -> None:
    for path in (entry.path, *entry.aliases):
        answer = http.post(path, json={"model": "echo", **entry.example})
        if answer.status_code != 200:
            assert (answer.status_code, refusal(answer)["code"]) == (400, "unsupported_parameter")


async def _at_once(stack: RunningStack, number: int) -> list[str]:
    user: ChatCompletionUserMessageParam = {"role": "user", "content": "three wagons"}
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=stack.key) as client:

        async def streamed() -> str:
            stream = await client.chat.completions.create(
                model="echo", messages=[user], stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 2
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

        return await asyncio.gather(*(streamed() for _ in range(number)))


async def _messages_at_once(stack: RunningStack, number: int) -> list[str]:
    async with anthropic.AsyncAnthropic(base_url=stack.url, api_key=stack.key) as client:

        async def streamed() -> str:
            async with client.messages.stream(
                model="echo", max_tokens=9, messages=[{"role": "user", "content": "three wagons"}]
            ) as stream:
                return "".join([text async for text in stream.text_stream])

        return await asyncio.gather(*(streamed() for _ in range(number)))


def test_the_async_clients_stream_many_answers_at_once(stack: RunningStack) -> None:
    assert asyncio.run(_at_once(stack, 32)) == ["three wagons"] * 32
    assert asyncio.run(_messages_at_once(stack, 32)) == ["three wagons"] * 32


def test_live_requests_are_in_the_usage_of_their_project(stack: RunningStack, http: httpx.Client) -> None:
    def requests() -> int:
        rows = http.get("/v1/usage").json()["data"]
        return sum(row["requests"] for row in rows if row["model"] == "other")

    before = requests()
    for _ in range(3):
        assert http.post(CHAT.path, json=HELLO | {"model": "other"}).status_code == 200
    until(lambda: requests() >= before + 3, seconds=20)


def test_every_answer_says_what_its_key_may_still_send(http: httpx.Client) -> None:
    # What other tests have sent with their key is given back by the minute.
    headers = {"Authorization": f"Bearer {http.post('/v1/keys', json={'project': 'counted'}).json()['key']}"}
    first, *_, last = (http.post(CHAT.path, json=HELLO, headers=headers) for _ in range(5))
    for what in ("requests", "tokens"):
        limit, remaining = (int(first.headers[f"x-ratelimit-{name}-{what}"]) for name in ("limit", "remaining"))
        assert 0 < remaining <= limit
    left = [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in (first, last)]
    assert left[1] < left[0]
    assert first.headers["x-request-id"] != last.headers["x-request-id"]


def test_a_request_of_tier_flex_is_answered_where_there_is_room(http: httpx.Client) -> None:
    answer = http.post(CHAT.path, json=HELLO | {"service_tier": "flex"})
    assert answer.status_code == 200, answer.text
