"""Fixtures of the conformance tests: plain HTTP beside the `openai` client, and one ended batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.stacks import RunningStack, a_chat

MIXED = 90  # requests of the batch that many tests read


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each fuzzed operation a node id of its own: with one for all, xdist would run the first of them only."""
    for item in items:
        if item.path.name == "test_fuzzing.py":
            item._id = dataclasses.replace(item.id, params=item.name.partition("[")[2].removesuffix("]"))


@pytest.fixture(scope="session")
def http(stack: RunningStack) -> Iterator[httpx.Client]:
    """Plain HTTP, with the deployment's admin key."""
    with httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=300) as client:
        yield client


@pytest.fixture(scope="session")
def mixed(stack: RunningStack) -> Any:
    """A completed batch of two models with 90 requests, 15 of which the engine refused."""
    requests = [a_chat(f"id-{number}", "hello", model=("echo", "failing")[number % 2]) for number in range(MIXED)]
    batch = stack.wait(stack.submit(requests, metadata={"team": "a"}))
    assert batch.status == "completed", batch.to_json()
    return batch


@pytest.fixture(scope="session")
def created(stack: RunningStack) -> dict[str, Any]:
    """A valid body for creating a batch."""
    file = stack.client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    return {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}


def refusal(answer: httpx.Response) -> dict[str, Any]:
    """Return the error of a response, after checking that it is OpenAI's error object."""
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert answer.headers["x-request-id"].startswith("req_")
    return dict(body["error"])
