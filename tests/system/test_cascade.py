"""Recipe cascade on a stack: a small model's answers are taken where they are certified, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from typing import Any

import pytest
import requests

from tests.support.stacks import RunningStack

ROWS = 600
"""Fewer certify nothing."""


def rows(small: str, large: str) -> list[dict[str, Any]]:
    """Return rows whose answers are planted: the small model is often wrong where it is less sure."""
    draw = random.Random(11)
    made = []
    for number in range(ROWS):
        p = round(draw.uniform(0.4, 0.999), 3)
        wrong = p < 0.6 and draw.random() < 0.6
        answer = "bad" if wrong else "good"
        made.append({"text": f"Review {number} <{small} {p}>{answer}</{small}> <{large} 1>good</{large}>", "p": p})
    return made


def create(stack: RunningStack, small: str, large: str, **options: Any) -> dict[str, Any]:
    options = {"proxy": small, "model": large, "template": "Judge: {text}", "agree": 0.9, "audit": 20} | options
    body = {"recipe": "cascade", "input": {"items": rows(small, large)}, "options": options}
    headers = {"Authorization": f"Bearer {stack.key}"}
    response = requests.post(f"{stack.url}/v1/jobs", json=body, headers=headers, timeout=300)
    assert response.status_code == 200, response.text
    job: dict[str, Any] = response.json()
    return job


def artifact(stack: RunningStack, job: dict[str, Any], name: str) -> bytes:
    file_id = next(entry["file_id"] for entry in job["batchyard"]["artifacts"] if entry["name"] == name)
    return stack.client.files.content(file_id).content


def test_the_large_model_is_asked_about_the_rows_that_need_it(stack: RunningStack) -> None:
    job = stack.wait_for_job(create(stack, "other", "echo"))
    assert job["status"] == "completed", job
    lines = [json.loads(line) for line in artifact(stack, job, "answers.jsonl").splitlines()]
    metrics = job["batchyard"]["metrics"]
    assert [line["p"] for line in lines] == [row["p"] for row in rows("other", "echo")], "in the order of the input"
    assert all(line["confidence"] == pytest.approx(line["p"]) for line in lines)
    assert sum(line["answer"] == "good" for line in lines) >= 0.9 * ROWS
    by = {model: sum(line["answered_by"] == model for line in lines) for model in ("other", "echo")}
    assert (metrics["proxy"], metrics["large"]) == (by["other"], by["echo"]) and sum(by.values()) == ROWS
    assert metrics["tokens"]["large"]["requests"] == by["echo"] < 0.7 * ROWS
    assert metrics["tokens"]["proxy"]["requests"] == ROWS and 0 < metrics["large_share"] < 0.7
    assert metrics["certified"] and metrics["audit"]["rows"] == 20
    children = stack.client.get("/jobs", cast_to=object, options={"params": {"parent_id": job["id"]}})
    stages = [stage for child in children["data"] for stage in child["batchyard"]["stages"]]  # type: ignore[index]
    assert sum(stage["issued"] for stage in stages) == ROWS + by["echo"], "nothing was asked twice"


# test_tune.py kills a process amid another job of jobs, and test_faults.py the workers of a batch and of a rollout.
@pytest.mark.exhaustive
def test_a_cascade_whose_processes_are_killed_has_the_same_bytes(faulty: RunningStack) -> None:
    whole = faulty.wait_for_job(create(faulty, "logged", "echo", reuse=False))
    killed = create(faulty, "logged", "echo", reuse=False)
    ended, kills = False, 0
    while not ended and kills < 2:
        time.sleep(3)
        os.kill(faulty.processes("worker")[0].pid, signal.SIGKILL)
        kills += 1
        job: Any = faulty.client.get(f"/jobs/{killed['id']}", cast_to=object)
        ended = job["status"] == "completed"
    killed = faulty.wait_for_job(killed)
    assert kills and (whole["status"], killed["status"]) == ("completed", "completed"), killed
    assert artifact(faulty, killed, "answers.jsonl") == artifact(faulty, whole, "answers.jsonl")
    assert killed["batchyard"]["metrics"] == whole["batchyard"]["metrics"]
