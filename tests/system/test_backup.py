"""A backup made while batches run, restored elsewhere, where they go on to their ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import batchyard

MODELS = """
[models.slow]
engine = "echo"
max_in_flight = 8
[models.slow.engine_args]
latency_ms = 100
"""
SETTINGS = {"BATCHYARD_ALLOW_SIMULATED": "1", "BATCHYARD_SEGMENT_REQUESTS": "40"}
REQUESTS = 120


@pytest.mark.local
def test_batches_that_run_during_a_backup_complete_where_it_is_restored(
    start_stack: Callable[..., RunningStack], tmp_path: Path
) -> None:
    stack = start_stack(MODELS, **SETTINGS)
    lines = [[a_chat(f"{name}-{line}", f"text {line}", model="slow") for line in range(REQUESTS)] for name in "abc"]
    batches = [stack.submit(requests) for requests in lines]
    for batch in batches:
        stack.wait(batch, until=lambda batch: batch.status == "in_progress")
    stack.wait(batches[0], until=lambda batch: batch.request_counts.completed > 0)
    made = batchyard("backup", "backup", "--data", stack.data, "--json", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["rows"]["batches"] == 3
    running = [stack.client.batches.retrieve(batch.id).status for batch in batches]
    assert "in_progress" in running, "the backup was made while they ran"
    stack.kill()

    elsewhere = stack.data.parent / "restored"
    restored = batchyard("restore", "backup", "--data", elsewhere, folder=tmp_path)
    assert restored.returncode == 0, restored.stderr
    again = batchyard("restore", "backup", "--data", elsewhere, folder=tmp_path)
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)
    assert {path.stat().st_mode & 0o077 for path in [*(tmp_path / "backup").rglob("*"), elsewhere]} == {0}
    shutil.rmtree(stack.data)
    other = RunningStack.restart(elsewhere, **SETTINGS)
    try:
        for batch, requests in zip(batches, lines, strict=True):
            ended = other.wait(other.client.batches.retrieve(batch.id))
            counts = ended.request_counts
            assert (ended.status, counts.completed, counts.failed) == ("completed", REQUESTS, 0)
            answered = [line["custom_id"] for line in other.lines(ended.output_file_id)]
            assert sorted(answered) == sorted(request["custom_id"] for request in requests)
    finally:
        other.kill()
