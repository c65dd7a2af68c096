"""The state file of a local stack: only that of a running one counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil

from batchyard.local_state import STATE_FILE, local_state


def write(data: Path, **changes: Any) -> dict[str, Any]:
    """Write the state file of a stack that is this process."""
    process = psutil.Process()
    state = {"url": "http://127.0.0.1:1", "flower": "", "pid": process.pid, "started": process.create_time()} | changes
    (data / STATE_FILE).parent.mkdir(parents=True)
    (data / STATE_FILE).write_text(json.dumps(state))
    return state


def test_the_state_of_a_running_stack_is_read(tmp_path: Path) -> None:
    assert local_state(tmp_path) == {}
    state = write(tmp_path)
    assert local_state(tmp_path) == state


def test_the_state_of_a_killed_stack_counts_for_nothing_also_when_another_process_has_its_pid(tmp_path: Path) -> None:
    write(tmp_path, started=1.0)
    assert local_state(tmp_path) == {}


def test_a_path_that_is_no_folder_has_no_stack(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert local_state(tmp_path / "file") == {}
