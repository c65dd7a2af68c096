"""The state file of a running local stack: its place in the data folder, and its content."""

import json
from pathlib import Path
from typing import Any

STATE_FILE = Path("run", "stack.json")
"""The state file's path below the data folder."""


def local_state(data: Path) -> dict[str, Any]:
    """Return `url`, `flower`, `pid`, `started`, `ray` of the running stack; empty if none."""
    try:
        state = dict(json.loads((data / STATE_FILE).read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    import psutil  # only where there is a stack: `--help` is faster without it

    try:
        return state if psutil.Process(state["pid"]).create_time() == state["started"] else {}
    except psutil.Error:
        return {}
