"""A backup made while batches run, restored elsewhere, where they go on to their ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.faulty import restart
from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import batchyard

REQUESTS = 80


@pytest.mark.exhaustive
@pytest.mark.local
def test_batches_that_run_during_a_backup_complete_where_it_is_restored(faulty: RunningStack, tmp_path: Path) -> None:
    before = len(list(faulty.client.batches.list(limit=100)))
    lines = [[a_chat(f"{name}-{line}", f"text {line}", model="slow") for line in range(REQUESTS)] for name in "abc"]
    batches = [faulty.submit(requests) for requests in lines]
    for batch in batches:
        faulty.wait(batch, until=lambda batch: batch.status == "in_progress")
    faulty.wait(batches[0], until=lambda batch: batch.request_counts.completed > 0)
    made = batchyard("backup", "backup", "--data", faulty.data, "--json", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["rows"]["batches"] >= before + 3
    running = [faulty.client.batches.retrieve(batch.id).status for batch in batches]
    assert "in_progress" in running, "the backup was made while they ran"
    faulty.kill()

    elsewhere = faulty.data.parent / "restored"
    restored = batchyard("restore", "backup", "--data", elsewhere, folder=tmp_path)
    assert restored.returncode == 0, restored.stderr
    again = batchyard("restore", "backup", "--data", elsewhere, folder=tmp_path)
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)
    assert {path.stat().st_mode & 0o077 for path in [*(tmp_path / "backup").rglob("*"), elsewhere]} == {0}
    shutil.rmtree(faulty.data)
    restart(faulty, elsewhere)
    for batch, requests in zip(batches, lines, strict=True):
        ended = faulty.wait(faulty.client.batches.retrieve(batch.id))
        counts = ended.request_counts
        assert (ended.status, counts.completed, counts.failed) == ("completed", REQUESTS, 0)
        answered = [line["custom_id"] for line in faulty.lines(ended.output_file_id)]
        assert sorted(answered) == sorted(request["custom_id"] for request in requests)
