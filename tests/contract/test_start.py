"""POST /start: prompts become a batch that runs with the options sent. What is refused: tests/webapp/test_start.py."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import httpx

from tests.contract.conftest import refusal
from tests.support.stacks import RunningStack, a_chat


def requests(stack: RunningStack, answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the request lines of a started batch."""
    assert answer.status_code == 202, answer.text
    return stack.lines(answer.json()["file_id"])


def test_a_list_of_prompts_runs_with_what_it_was_given(stack: RunningStack, http: httpx.Client) -> None:
    body = {
        "model": "echo",
        "prompts": ["one", "two\nlines", " "],
        "system": "Be brief.",
        "temperature": 0.5,
        "sampling": {"seed": 7, "max_tokens": 9},
        "completion_window": "2h",
        "metadata": {"team": "a"},
        "post_process": [{"step": "parquet"}],
    }
    answer = http.post("/start", json=body)
    lines = requests(stack, answer)
    system = {"role": "system", "content": "Be brief."}
    assert [line["body"]["messages"] for line in lines] == [
        [system, {"role": "user", "content": "one"}],
        [system, {"role": "user", "content": "two\nlines"}],
    ]
    for line in lines:
        body = {key: value for key, value in line["body"].items() if key != "messages"}
        assert body == {"model": "echo", "temperature": 0.5, "seed": 7, "max_tokens": 9}
    started = answer.json()
    assert started["job_id"] == started["batch_id"]
    batch = http.get(started["status_url"]).json()
    assert (batch["id"], batch["completion_window"], batch["metadata"]) == (started["batch_id"], "2h", {"team": "a"})
    ended = stack.wait(stack.client.batches.retrieve(started["batch_id"]))
    answers = [
        line["response"]["body"]["choices"][0]["message"]["content"] for line in stack.lines(ended.output_file_id)
    ]
    assert (ended.status, answers) == ("completed", ["one", "two\nlines"])
    assert "results.parquet" in [artifact["name"] for artifact in ended.batchyard["artifacts"]]


def test_a_form_with_one_prompt_a_line_runs(stack: RunningStack, http: httpx.Client) -> None:
    answer = http.post("/start", data={"model": "echo", "prompts": "one\r\n\r\ntwo\r\n", "max_tokens": "5"})
    lines = requests(stack, answer)
    assert [line["body"]["messages"][0]["content"] for line in lines] == ["one", "two"]
    assert [line["custom_id"] for line in lines] == ["prompt-1", "prompt-3"]
    assert {line["body"]["max_tokens"] for line in lines} == {5}


def test_a_compressed_file_of_whole_requests_runs_as_what_it_holds(stack: RunningStack, http: httpx.Client) -> None:
    content = json.dumps(a_chat("mine", "hello")).encode() + b"\n"
    answer = http.post("/start", files={"file": ("in.jsonl.gz", gzip.compress(content))})
    assert requests(stack, answer)[0]["custom_id"] == "mine"
    assert stack.client.files.content(answer.json()["file_id"]).content == content


def test_a_dry_run_counts_and_forecasts_and_starts_nothing(stack: RunningStack, http: httpx.Client) -> None:
    stack.wait(stack.submit([a_chat("measured", "so that there is a speed")]))
    project = stack.in_project("dry")
    own = {"Authorization": f"Bearer {project.key}"}
    body = {"model": "echo", "prompts": ["a", "b"], "completion_window": "2h"}
    outlook = http.post("/start?dry_run=true", json=body, headers=own).json()
    assert (outlook["object"], outlook["requests"], outlook["on_time"]) == ("batch.dry_run", 2, True)
    assert outlook["eta_earliest_seconds"] <= outlook["eta_seconds"] <= outlook["eta_latest_seconds"]
    assert 7000 < outlook["due_at"] - time.time() <= 7200
    content = json.dumps(a_chat("mine", "hello", model="unmeasured")).encode() + b"\n"
    whole = http.post("/start?dry_run=true", files={"file": ("in.jsonl", content)}, headers=own).json()
    assert (whole["requests"], whole["bytes"], whole["eta_seconds"], whole["on_time"]) == (1, len(content), None, None)
    refused = http.post("/start?dry_run=true", json={**body, "model": "gpt-9"}, headers=own)
    assert (refused.status_code, refusal(refused)["param"]) == (400, "model")
    assert project.client.batches.list().data == []
