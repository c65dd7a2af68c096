"""inspect-ai with `--batch`, live, and after it was killed. `make foreign` makes its environment."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.foreign.clients import bin_folder, environment
from tests.support.stacks import RunningStack

SAMPLES = 40
TASK = f"""
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes


@task
def repeats():
    samples = [Sample(input=f"say {{number}}", target=str(number)) for number in range({SAMPLES})]
    return Task(dataset=samples, scorer=includes())
"""


@pytest.fixture
def cached(stack: RunningStack) -> RunningStack:
    """The stack, with the key of a project that has a result cache."""
    with httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=60) as admin:
        key = admin.post("/v1/keys", json={"project": "inspect"}).json()["key"]
        (project,) = (each for each in admin.get("/v1/projects").json()["data"] if each["name"] == "inspect")
        admin.post(f"/v1/projects/{project['id']}", json={"cache_bytes": 10**7}).raise_for_status()
    return replace(stack, key=key)


def started(stack: RunningStack, home: Path, model: str, *options: str) -> subprocess.Popen[str]:
    """Start an evaluation; its log is a file of JSON in the folder `logs`."""
    (home / "task.py").write_text(TASK)
    words = ["eval", "task.py", "--model", f"openai/{model}", "--temperature", "0", "--max-tokens", "8"]
    words += ["--log-format", "json", "--display", "plain", *options]
    return subprocess.Popen(
        [bin_folder("inspect") / "inspect", *words],
        env=environment(stack, home),
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def in_batches(home: Path, tick: float) -> tuple[str, str]:
    """Return the option of an evaluation in batches, whose client looks every `tick` seconds what has ended."""
    (home / "batch.json").write_text(json.dumps({"size": SAMPLES, "send_delay": 300, "tick": tick}))
    return "--batch", "batch.json"


def result(evaluation: subprocess.Popen[str], home: Path) -> tuple[float, list[str]]:
    """Wait for an evaluation; return its accuracy, and its answers by sample."""
    output, _ = evaluation.communicate(timeout=600)
    assert evaluation.returncode == 0, output[-4000:]
    log = json.loads(max((home / "logs").glob("*.json"), key=lambda file: file.stat().st_mtime).read_text())
    assert log["status"] == "success", log.get("error")
    samples = sorted(log["samples"], key=lambda sample: int(sample["id"]))
    accuracy: float = log["results"]["scores"][0]["metrics"]["accuracy"]["value"]
    return accuracy, [sample["output"]["completion"] for sample in samples]


def batches(stack: RunningStack) -> list[Any]:
    """Return the batches of the stack's key, the newest first."""
    return list(stack.client.batches.list(limit=100))


@pytest.mark.parametrize(
    ("options", "endpoint"),
    [((), "/v1/responses"), (("-M", "responses_api=false"), "/v1/chat/completions")],
    ids=["responses", "chat"],
)
def test_an_evaluation_runs_in_batches_and_live(
    cached: RunningStack, tmp_path: Path, options: tuple[str, ...], endpoint: str
) -> None:
    before = len(batches(cached))
    expected = (1.0, [f"say {number}" for number in range(SAMPLES)])
    assert result(started(cached, tmp_path, "echo", *options, *in_batches(tmp_path, 0.5)), tmp_path) == expected
    batch = batches(cached)[0]
    assert len(batches(cached)) == before + 1
    assert (batch.endpoint, batch.request_counts.completed) == (endpoint, SAMPLES)
    assert result(started(cached, tmp_path, "echo", *options), tmp_path) == expected
    assert len(batches(cached)) == before + 1, "live requests make no batch"


def test_a_run_after_a_kill_gets_from_the_cache_what_the_first_has_asked(cached: RunningStack, tmp_path: Path) -> None:
    before = len(batches(cached))
    killed = started(cached, tmp_path, "nano", *in_batches(tmp_path, 60))
    deadline = time.monotonic() + 600
    while len(batches(cached)) == before:
        assert time.monotonic() < deadline and killed.poll() is None, killed.communicate()[0]
        time.sleep(0.1)
    killed.kill()
    killed.communicate()
    first = cached.wait(batches(cached)[0])
    assert first.request_counts.completed == SAMPLES and first.batchyard["shared"]["requests"] == 0
    _, answers = result(started(cached, tmp_path, "nano", *in_batches(tmp_path, 0.5)), tmp_path)
    second = batches(cached)[0]
    assert second.id != first.id and second.batchyard["shared"]["requests"] == SAMPLES
    bodies = [line["response"]["body"] for line in cached.lines(first.output_file_id)]
    assert sorted(answers) == sorted(body["output"][0]["content"][0]["text"] for body in bodies)
