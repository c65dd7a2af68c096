"""Real vLLM that calls tools: for live requests of the official clients, beside a batch, and in recipe `agent`."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from typing import Any

import openai
import pyarrow.parquet as pq
import pytest

from batchyard.models import vllm_installed
from tests.support.stacks import RunningStack, a_chat
from tests.support.vllm_engines import CLIENT_SECONDS

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")]
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "paint", "description": "Paint it.", "parameters": COLOUR}}
PAINT: Any = {"type": "function", "function": {"name": "paint"}}
SUM: Any = [{"role": "user", "content": "What is 37 + 58?"}]
PLAIN: dict[str, Any] = {"model": "mini", "messages": SUM, "temperature": 0, "max_tokens": 64}


@pytest.fixture(scope="module")
def client(vllm_stack: RunningStack) -> Any:
    return openai.OpenAI(base_url=f"{vllm_stack.url}/v1", api_key=vllm_stack.key, max_retries=0, timeout=CLIENT_SECONDS)


def test_a_request_starts_the_engine_and_is_answered_as_in_a_batch(vllm_stack: RunningStack, client: Any) -> None:
    whole = client.chat.completions.create(**PLAIN)
    assert whole.choices[0].message.content == "95"
    line = a_chat("a", "What is 37 + 58?", model="mini", temperature=0, max_tokens=64)
    batch = vllm_stack.wait(vllm_stack.submit([line]), seconds=200)
    (answer,) = vllm_stack.lines(batch.output_file_id)
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == "95"
    assert answer["response"]["body"]["usage"]["prompt_tokens"] == whole.usage.prompt_tokens


def test_a_tool_is_called_whole_and_streamed(client: Any) -> None:
    whole = client.chat.completions.create(**PLAIN, tools=[TOOL], tool_choice=PAINT)
    with client.chat.completions.stream(**PLAIN, tools=[TOOL], tool_choice=PAINT) as stream:
        streamed = stream.get_final_completion()
    (call,), (streamed_call,) = (one.choices[0].message.tool_calls for one in (whole, streamed))
    assert call.function.name == streamed_call.function.name == "paint"
    assert call.function.arguments == streamed_call.function.arguments


def test_an_answer_keeps_to_its_structure_whole_and_streamed(client: Any) -> None:
    structure = {"extra_body": {"structured_outputs": {"choice": ["red", "green"]}}}
    whole = client.chat.completions.create(**PLAIN, **structure)
    stream = client.chat.completions.create(**PLAIN, **structure, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert whole.choices[0].message.content == text and text in ("red", "green")


def test_async_clients_stream_at_once_while_a_batch_has_all_places(vllm_stack: RunningStack) -> None:
    lines = [a_chat(f"id-{n}", f"Say it {n}", model="mini", max_tokens=200, ignore_eos=True) for n in range(60)]
    batch = vllm_stack.wait(
        vllm_stack.submit(lines), until=lambda batch: batch.request_counts.completed > 0, seconds=200
    )

    async def streamed(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(**PLAIN, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async def at_once() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{vllm_stack.url}/v1", api_key=vllm_stack.key, timeout=120) as client:
            return await asyncio.gather(*(streamed(client) for _ in range(16)))

    assert asyncio.run(at_once()) == ["95"] * 16
    batch = vllm_stack.wait(batch, seconds=200)
    ids = Counter(line["custom_id"] for line in vllm_stack.lines(batch.output_file_id))
    assert ids == {f"id-{n}": 1 for n in range(60)}


def test_an_agent_calls_tools_turn_by_turn_and_its_tokens_are_those_of_the_engine(vllm_stack: RunningStack) -> None:
    options = {
        "model": "mini",
        "tools": ["price"],
        "tool_choice": "required",
        "max_turns": 3,
        "sampling": {"temperature": 0.2, "max_tokens": 200},
        "logprobs": True,
        "response_ids": True,
    }
    rows = [{"prompt": f"What cost {n} apples?"} for n in range(4)]
    body = {"recipe": "agent", "input": {"items": rows}, "options": options}
    job: Any = vllm_stack.wait_for_job(vllm_stack.client.post("/jobs", body=body, cast_to=object))
    assert job["status"] == "completed", job["errors"]
    files = {artifact["name"]: artifact["file_id"] for artifact in job["batchyard"]["artifacts"]}
    content = io.BytesIO(vllm_stack.client.files.content(files["trajectories.parquet"]).content)
    trajectories = pq.read_table(content).to_pylist()
    assert [row["prompt"][0]["content"] for row in trajectories] == [row["prompt"] for row in rows]
    for row in trajectories:
        calls = [call for message in row["messages"] for call in message.get("tool_calls") or ()]
        results = [message for message in row["messages"] if message["role"] == "tool"]
        assert len(calls) == len(results) > 0, row["messages"]
    traces = [json.loads(line) for line in vllm_stack.client.files.content(files["traces.jsonl"]).text.splitlines()]
    for trace in traces:
        answers = [node for node in trace["nodes"] if node["sampled"]]
        assert len(answers) == len(trace["calls"]) == 3
        for node, call in zip(answers, trace["calls"], strict=True):
            sampled = call["usage"]["completion_tokens"]
            assert (sum(node["mask"]), len(node["logprobs"])) == (sampled, sampled)
            assert len(node["token_ids"]) == len(node["mask"]) > sampled, "the prompt's tokens are there, too"
