"""An experiment on a stack: its jobs survive a kill, and its command takes them up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.support.stacks import PATIENCE, RunningStack
from tests.support.terminal import batchyard


def wait(look: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + PATIENCE * seconds
    while not (result := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return result


@pytest.mark.exhaustive
def test_an_experiment_whose_worker_is_killed_goes_on_where_it_was_and_its_command_takes_it_up(
    faulty: RunningStack, tmp_path: Path
) -> None:
    rows = [{"prompt": f"{number}", "answer": f"{number}"} for number in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    experiment = {
        "recipe": "rollout",
        "input": "rows.jsonl",
        "options": {"n": 2, "reward": "exact", "ground_truth": "answer"},
        "variants": {
            "slow": {"model": "slow"},
            "slow-8": {"model": "slow", "sampling": {"max_tokens": 8}},
            "echo": {"model": "echo"},
        },
        "repeats": 2,
        "parallel": 1,
        "pass": ["slow.mean@2 > 0.5"],
    }
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    (tmp_path / "base.yaml").write_text("model: echo\n")
    (tmp_path / "echo-8.yaml").write_text("extends: base.yaml\nsampling.max_tokens: 8\n")
    arguments = ["experiment", "experiment.yaml", "-c", "echo-8.yaml", "--data", str(faulty.data)]
    command = [str(Path(sys.executable).parent / "batchyard"), *arguments]
    first = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)  # it is killed

    def jobs(**query: str) -> list[dict[str, Any]]:
        page: Any = faulty.client.get("/jobs", cast_to=object, options={"params": query})
        return list(page["data"])

    def children() -> dict[str, dict[str, Any]]:
        return {child["batchyard"]["child_key"]: child for child in jobs(parent_id=parent["id"])}

    try:
        parent = wait(lambda: next(iter(jobs(recipe="experiment")), None))
        done = wait(lambda: {key: child for key, child in children().items() if child["status"] == "completed"})
    finally:
        first.kill()
        first.wait()
    os.kill(faulty.processes("webhooks")[0].pid, signal.SIGKILL)
    printed = batchyard(*arguments, "--artifacts", "artifacts", folder=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert f"taking up job {parent['id']}" in printed.stderr
    assert f"8 of 8 jobs completed (simulated): {parent['id']}" in printed.stdout
    own = children()
    variants = ("echo", "echo-8", "slow", "slow-8")
    assert set(own) == {f"{variant}/{repeat}/0" for variant in variants for repeat in (0, 1)}
    assert {key: own[key] for key in done} == done
    assert "To pass\n" in printed.stdout and "slow.mean@2 > 0.5" in printed.stdout
    document = json.loads((tmp_path / "artifacts/comparison.json").read_text())
    assert (document["passed"], document["metrics"]["mean@2"]["variants"]["echo-8"]["n"]) == (True, 24)
    results = [json.loads(line) for line in (tmp_path / "artifacts/results.jsonl").read_text().splitlines()]
    assert {line["custom_id"]: line["result"]["job_id"] for line in results} == {
        key: child["id"] for key, child in own.items()
    }
    for key, child in own.items():
        variant, repeat, _ = key.split("/")
        files = {entry["name"]: entry["file_id"] for entry in child["batchyard"]["artifacts"]}
        manifest = json.loads(faulty.client.files.content(files["manifest.json"]).content)
        assert manifest["seed"] == int(repeat)
        assert manifest["options"]["model"] == variant.removesuffix("-8")
        assert manifest["options"]["sampling"]["max_tokens"] == (8 if variant.endswith("-8") else None)
        assert manifest["request_counts"]["completed"] == 24
    again = batchyard(*arguments, "pass=[slow.mean@2 > 2]", folder=tmp_path)
    assert again.returncode == 1
    assert "not all of `pass` holds" in again.stderr
    newest = jobs(recipe="experiment")[0]
    assert (newest["batchyard"]["children"], newest["batchyard"]["counters"]) == ([], {"taken": 8})
    counted = requests.get(f"{faulty.url}/metrics", timeout=30).text
    assert 'batchyard_job_counter_total{name="taken",recipe="experiment"}' in counted
    assert 'batchyard_job_items_total{recipe="experiment",state="completed"}' in counted
