"""Recipe refine on a real stack: what a trained model gets wrong goes to the next tier, and its reviewer is tried."""

from __future__ import annotations

import json
from typing import Any

import requests

from tests.support.stacks import ROOT, RunningStack, a_chat

PROBLEMS = [json.loads(line) for line in (ROOT / "examples/rollout.jsonl").read_text().splitlines()]
ECHOED = [{"custom_id": f"echo-{number}", "prompt": f"say {number}", "answer": f"say {number}"} for number in range(8)]
SAMPLING = {"temperature": 0, "max_tokens": 24}
ITEMS = [*PROBLEMS[::2], *ECHOED]


def correct(stack: RunningStack, model: str) -> set[str]:
    """Return the items that a model gets right in a flat batch; where the machine is slow, in several."""
    texts: dict[str, str] = {}
    while len(texts) < len(ITEMS):
        left = [item for item in ITEMS if item["custom_id"] not in texts]
        chats = [a_chat(item["custom_id"], item["prompt"], model=model, **SAMPLING) for item in left]
        lines = stack.lines(stack.wait(stack.submit(chats)).output_file_id)
        assert lines, "a batch has answers"
        texts |= {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}
    return {item["custom_id"] for item in ITEMS if texts[item["custom_id"]] == item["answer"]}


def test_the_second_tier_is_asked_exactly_what_the_first_one_fails(stack: RunningStack) -> None:
    http = requests.Session()
    http.headers["Authorization"] = f"Bearer {stack.key}"
    options = {
        "tiers": [{"model": "nano", "budget": 1}, {"model": "echo", "budget": 1}],
        "gates": ["equals:{{answer}}"],
        "feedback": False,
        "sampling": SAMPLING,
        "reviewer": {"model": "other", "prompt": "PASS\n{answer}"},  # it says what it is told
    }
    body = {"recipe": "refine", "input": {"items": ITEMS}, "options": options}
    response = http.post(f"{stack.url}/v1/jobs", json=body, timeout=300)
    assert response.status_code == 200, response.text
    right = {model: correct(stack, model) for model in ("nano", "echo")}
    job = stack.wait_for_job(response.json())
    assert job["status"] == "completed", job

    def lines(name: str) -> list[dict[str, Any]]:
        file_id = next(entry["file_id"] for entry in job["batchyard"]["artifacts"] if entry["name"] == name)
        return [json.loads(line) for line in stack.client.files.content(file_id).content.splitlines()]

    everything = {item["custom_id"] for item in ITEMS}
    assert right["nano"] and right["echo"] and right["nano"] | right["echo"] < everything
    done, stuck = lines("done.jsonl"), lines("stuck.jsonl")
    assert {line["custom_id"] for line in done} == right["nano"] | right["echo"]
    assert {line["custom_id"]: line["model"] for line in done}.items() >= dict.fromkeys(right["nano"], "nano").items()
    assert {line["custom_id"] for line in stuck} == everything - right["nano"] - right["echo"]
    stages = {stage["name"]: stage["batch_id"] for stage in job["batchyard"]["stages"]}
    answering = stack.client.batches.retrieve(stages["answer"])
    asked = stack.lines(answering.input_file_id)
    by_model: dict[str, set[str]] = {"nano": set(), "echo": set()}
    for line in asked:
        by_model[line["body"]["model"]].add(line["custom_id"].rpartition("/")[0])
    assert by_model == {"nano": everything, "echo": everything - right["nano"]}
    late = len(stack.lines(answering.error_file_id))  # where the machine is slow, they are asked again
    assert len(asked) - late == len(by_model["nano"]) + len(by_model["echo"])
    metrics = job["batchyard"]["metrics"]
    assert metrics["catch_rate"]["mean"] == 0.0
    (warning,) = job["batchyard"]["warnings"]
    assert warning["code"] == "reviewer_agrees"
