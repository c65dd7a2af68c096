"""A project with a result cache gets earlier answers without running a request again; other projects do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.support.stacks import RunningStack, a_chat


@pytest.fixture(scope="module")
def as_project(stack: RunningStack, http: httpx.Client) -> Callable[..., RunningStack]:
    """A function that returns the stack with the key of a new project."""

    def make(name: str, cache_bytes: int | None = None) -> RunningStack:
        key = http.post("/v1/keys", json={"project": name}).json()["key"]
        project = next(entry for entry in http.get("/v1/projects").json()["data"] if entry["name"] == name)
        settled = http.post(f"/v1/projects/{project['id']}", json={"cache_bytes": cache_bytes}).json()
        assert settled["cache_bytes"] == cache_bytes
        return replace(stack, key=key)

    return make


def chats(prefix: str, *texts: str, **body: Any) -> list[dict[str, Any]]:
    body = {"model": "nano", "temperature": 0, "max_tokens": 4} | body
    return [a_chat(f"{prefix}-{number}", text, **body) for number, text in enumerate(texts)]


def answered(stack: RunningStack, requests: list[dict[str, Any]]) -> tuple[Any, list[dict[str, Any]]]:
    """Run requests; return the batch, and the response bodies in the order of the requests."""
    batch = stack.wait(stack.submit(requests))
    assert batch.request_counts.completed == len(requests)
    lines = stack.lines(batch.output_file_id)
    assert [line["custom_id"] for line in lines] == [request["custom_id"] for request in requests]
    return batch, [line["response"]["body"] for line in lines]


def test_what_a_project_asked_before_is_not_run_again(as_project: Callable[..., RunningStack]) -> None:
    stack = as_project("cached", cache_bytes=10**6)
    first, bodies = answered(stack, chats("first", "one", "two"))
    assert first.batchyard["shared"]["requests"] == 0
    batch, again = answered(stack, chats("again", "two", "new", "one", "two"))
    two, new, one, copy = again
    assert len({two["id"], new["id"], one["id"]} | {body["id"] for body in bodies}) == 3, "only the new one ran"
    assert one == bodies[0] | {"batchyard": {"cached": True}}
    assert two == bodies[1] | {"batchyard": {"cached": True}}
    assert copy == bodies[1] | {"batchyard": {"cached": True, "same_as": "again-0"}}
    assert "batchyard" not in new
    served = [body["usage"] for body in (two, one, copy)]
    assert batch.batchyard["shared"] == {
        "requests": 3,
        "input_tokens": sum(usage["prompt_tokens"] for usage in served),
        "output_tokens": sum(usage["completion_tokens"] for usage in served),
    }
    assert batch.usage.input_tokens == sum(body["usage"]["prompt_tokens"] for body in again)
    whole, _ = answered(stack, chats("third", "new", "one"))
    assert whole.batchyard["shared"]["requests"] == 2


def test_a_verification_runs_what_the_cache_has(as_project: Callable[..., RunningStack]) -> None:
    stack = as_project("verified", cache_bytes=10**6)
    first, bodies = answered(stack, chats("first", "three", "four"))
    made: Any = stack.client.post(f"/batches/{first.id}/verify", cast_to=object)
    again = stack.wait(stack.client.batches.retrieve(made["id"]))
    assert (again.status, again.batchyard["shared"]["requests"]) == ("completed", 0)
    ids = {line["response"]["body"]["id"] for line in stack.lines(again.output_file_id)}
    assert not ids & {body["id"] for body in bodies}
    shown = stack.client.batches.retrieve(first.id).batchyard["verification"]
    assert (shown["batch_id"], shown["equal"], shown["different"], shown["changes"]) == (again.id, 2, 0, 0)


def test_another_project_runs_the_same_itself(as_project: Callable[..., RunningStack]) -> None:
    _, (body,) = answered(as_project("its-own", cache_bytes=10**6), chats("a", "mine"))
    batch, (other,) = answered(as_project("stranger", cache_bytes=10**6), chats("a", "mine"))
    assert batch.batchyard["shared"]["requests"] == 0
    assert other["id"] != body["id"]


# tests/tasks/execution/test_result_cache.py says the same of a segment, also of what is up to chance.
@pytest.mark.exhaustive
def test_without_a_cache_everything_runs(as_project: Callable[..., RunningStack]) -> None:
    stack = as_project("uncached")
    for _ in range(2):
        batch, _ = answered(stack, chats("a", "again"))
        assert batch.batchyard["shared"]["requests"] == 0


@pytest.mark.parametrize(
    "body",
    [pytest.param({"temperature": 1}, id="chance", marks=pytest.mark.exhaustive), {"model": "echo"}],
    ids=["chance", "simulated"],
)
def test_what_is_up_to_chance_or_simulated_is_never_cached(
    as_project: Callable[..., RunningStack], body: dict[str, Any]
) -> None:
    stack = as_project("careful", cache_bytes=10**6)
    for _ in range(2):
        batch, _ = answered(stack, chats("a", "again", **body))
        assert batch.batchyard["shared"]["requests"] == 0
