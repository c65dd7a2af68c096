"""Message batches with the unmodified `anthropic` client, beside the `openai` client: two views of one batch."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types.messages import MessageBatch

from tests.support.stacks import ROOT, RunningStack

COUNT = 30


@pytest.fixture(scope="module")
def client(stack: RunningStack) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=stack.url, api_key=stack.key, max_retries=0)


def a_request(custom_id: str, model: str = "failing", **params: Any) -> Any:
    body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": f"hello {custom_id}"}]} | params
    return {"custom_id": custom_id, "params": body}


def as_lines(requests: list[Any]) -> list[dict[str, Any]]:
    """Requests as lines of a file."""
    url = {"method": "POST", "url": "/v1/messages"}
    return [{"custom_id": request["custom_id"], **url, "body": request["params"]} for request in requests]


def wait(client: anthropic.Anthropic, batch: MessageBatch) -> MessageBatch:
    deadline = time.monotonic() + 360
    while (batch := client.messages.batches.retrieve(batch.id)).processing_status != "ended":
        assert time.monotonic() < deadline, batch.to_json()
        time.sleep(0.1)
    return batch


def ours(batch: MessageBatch) -> str:
    return batch.id.replace("msgbatch_", "batch_")


def test_each_request_has_its_result_and_openais_client_sees_the_same(
    stack: RunningStack, client: anthropic.Anthropic
) -> None:
    invalid = [a_request("bad", max_tokens=0), a_request("late", model="none")]
    made = client.messages.batches.create(requests=[a_request(f"r{number}") for number in range(COUNT)] + invalid)
    assert (made.processing_status, made.request_counts.processing) == ("in_progress", COUNT + 2)
    batch = wait(client, made)
    results = {result.custom_id: result.result for result in client.messages.batches.results(batch.id)}
    assert len(results) == COUNT + 2
    succeeded = {name: result.message for name, result in results.items() if result.type == "succeeded"}
    errored = {name: result.error.error for name, result in results.items() if result.type == "errored"}
    assert succeeded and errored.keys() > {"bad", "late"}, "engine `failing` refuses every third request"
    for name, message in succeeded.items():
        (block,) = message.content
        assert (message.type, message.role, block.type) == ("message", "assistant", "text")
        assert name in getattr(block, "text", "")
    assert {name: error.type for name, error in errored.items() if name in ("bad", "late")} == {
        "bad": "invalid_request_error",
        "late": "not_found_error",
    }
    counts = batch.request_counts
    assert (counts.processing, counts.succeeded, counts.errored) == (0, len(succeeded), len(errored))
    assert batch.ended_at and batch.created_at <= batch.ended_at < batch.expires_at
    same = stack.client.batches.retrieve(ours(batch))
    assert same.request_counts and (same.status, same.endpoint) == ("completed", "/v1/messages")
    assert (same.request_counts.completed, same.request_counts.failed) == (len(succeeded), len(errored))
    assert same.id in {entry.id for entry in stack.client.batches.list(limit=100)}
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'"):
        stack.client.batches.cancel(same.id)
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(openai.NotFoundError):
        stack.client.batches.retrieve(same.id)


def test_a_batch_of_openais_client_is_listed_cancelled_and_read_by_anthropics_async_one(stack: RunningStack) -> None:
    requests = [a_request(f"r{number}", model="slow") for number in range(2000)]
    batch = stack.submit(as_lines(requests), endpoint="/v1/messages")
    stack.wait(batch, until=lambda batch: batch.request_counts.completed > 0)
    id_ = f"msg{batch.id}"

    def connected() -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=stack.url, auth_token=stack.key, max_retries=0)

    async def cancel() -> MessageBatch:
        async with connected() as client:
            assert id_ in [listed.id async for listed in client.messages.batches.list(limit=5)]
            return await client.messages.batches.cancel(id_)

    async def read() -> tuple[MessageBatch, list[str]]:
        async with connected() as client:
            results = await client.messages.batches.results(id_)
            return await client.messages.batches.retrieve(id_), [result.result.type async for result in results]

    assert asyncio.run(cancel()).processing_status == "canceling"
    stack.wait(batch)
    ended, types = asyncio.run(read())
    assert ended.cancel_initiated_at is not None
    assert len(types) == 2000 and set(types) == {"succeeded", "canceled"}
    counts = ended.request_counts
    assert (counts.succeeded, counts.canceled) == (types.count("succeeded"), types.count("canceled"))
    assert stack.client.batches.retrieve(batch.id).status == "cancelled"


def test_a_batch_of_anthropics_client_is_cancelled_by_openais(stack: RunningStack, client: anthropic.Anthropic) -> None:
    made = client.messages.batches.create(requests=[a_request(f"r{number}", model="slow") for number in range(1000)])
    with pytest.raises(anthropic.ConflictError, match="cancel it first"):
        client.messages.batches.delete(made.id)
    assert stack.client.batches.cancel(ours(made)).status == "cancelling"
    assert wait(client, made).request_counts.canceled > 0
    assert "canceled" in {result.result.type for result in client.messages.batches.results(made.id)}


def test_refusals_are_the_clients_exceptions(
    stack: RunningStack, client: anthropic.Anthropic, created: dict[str, Any]
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"requests\.0\.params") as refused:
        client.messages.batches.create(requests=[{"custom_id": "a", "params": []}])  # type: ignore[typeddict-item]
    assert refused.value.type == "invalid_request_error"
    assert str(refused.value.request_id).startswith("req_")
    with pytest.raises(anthropic.NotFoundError, match="No batch found"):
        client.messages.batches.retrieve("msgbatch_none")
    chat = stack.client.batches.create(**created)
    with pytest.raises(anthropic.NotFoundError, match=chat.id):
        client.messages.batches.retrieve(f"msg{chat.id}")
    with pytest.raises(anthropic.AuthenticationError, match="Incorrect API key"):
        anthropic.Anthropic(base_url=stack.url, api_key="sk-no", max_retries=0).messages.batches.list()


def test_the_list_is_walked_in_both_directions(client: anthropic.Anthropic) -> None:
    ids = [client.messages.batches.create(requests=[a_request("a")]).id for _ in range(5)][::-1]
    walked = [batch.id for batch in client.messages.batches.list(limit=2)]
    assert walked[:5] == ids
    newer = client.messages.batches.list(limit=2, before_id=ids[4])
    assert [batch.id for batch in newer] == [ids[2], ids[3], ids[0], ids[1]], "page after page, each newest first"


def test_the_document_shows_a_program_that_works(
    stack: RunningStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/anthropic.md").read_text(), re.DOTALL | re.MULTILINE
    )
    monkeypatch.chdir(stack.data.parent)
    exec(program.replace("http://127.0.0.1:8000", stack.url).replace('"chat"', '"slow"'), {})
    assert "MessageBatchSucceededResult" in capsys.readouterr().out
