"""Equal deterministic requests run once, and each gets the answer."""

from __future__ import annotations

import json

from tests.support.stacks import RunningStack, a_chat


def test_the_same_request_runs_once_and_every_line_has_the_answer(stack: RunningStack) -> None:
    requests = [a_chat(f"id-{number}", f"say {number % 3}", temperature=0) for number in range(60)]
    batch = stack.wait(stack.submit(requests))
    assert batch.request_counts.completed == 60
    lines = stack.lines(batch.output_file_id)
    assert [line["custom_id"] for line in lines] == [f"id-{number}" for number in range(60)]
    bodies = [line["response"]["body"] for line in lines]
    assert [body["choices"][0]["message"]["content"] for body in bodies] == [f"say {n % 3}" for n in range(60)]
    assert [body.get("batchyard", {}).get("same_as") for body in bodies] == [None] * 3 + [
        f"id-{number % 3}" for number in range(3, 60)
    ]
    assert len({line["id"] for line in lines}) == len({line["response"]["request_id"] for line in lines}) == 60
    tokens = sum(body["usage"]["prompt_tokens"] for body in bodies)
    assert batch.usage.input_tokens == tokens == 120
    assert batch.batchyard["shared"] == {"requests": 57, "input_tokens": 114, "output_tokens": 114}
    assert json.loads(stack.artifact(batch, "manifest.json"))["usage"]["shared_requests"] == 57


def test_a_refusal_is_shared_too(stack: RunningStack) -> None:
    requests = [a_chat(f"id-{number}", "x" * 400, model="nano", temperature=0, max_tokens=600) for number in range(4)]
    requests += [a_chat(f"late-{number}", "hello", model="late", temperature=0) for number in range(3)]
    batch = stack.wait(stack.submit(requests))
    assert (batch.request_counts.completed, batch.request_counts.failed) == (0, 7)
    errors = stack.lines(batch.error_file_id)
    assert [line["custom_id"] for line in errors] == [request["custom_id"] for request in requests]
    assert [(line["response"], line["error"]["code"]) for line in errors[4:]] == [(None, "request_timeout")] * 3
    assert batch.batchyard["shared"]["requests"] == 2


def test_what_is_up_to_chance_runs_each_time(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat(f"id-{number}", "say it", temperature=1) for number in range(5)]))
    ids = [line["response"]["body"]["id"] for line in stack.lines(batch.output_file_id)]
    assert len(set(ids)) == 5
    assert batch.batchyard["shared"]["requests"] == 0
