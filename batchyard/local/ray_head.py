"""The head of a local Ray cluster as one small process: it starts Ray's servers, watches them, and ends them.

    python -m batchyard.local.ray_head ray start --head …

`ray start --block` would do the same in 140 MiB, since it keeps all that it has imported. This process imports nothing
of Ray: `ray start` is a child, which ends once the servers run. On Linux this process then becomes their parent.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from batchyard import kinship

START_HOOK = "batchyard.local.ray_head.start_less"
"""RAY_START_HOOK of `ray start`, which calls it with what it is about to start."""

_GRACE_SECONDS = 0.5
"""Ray's servers get so long to end by themselves. A node manager whose control store has ended before never does."""

_KILL_SECONDS = 2.0
"""The end waits for killed processes no longer."""


def start_less(parameters: Any, head: bool) -> None:
    """Let `ray start` start neither its server for remote clients nor that of its dashboard: nobody here uses them.

    It has no option for either. The first would need a port that it cannot choose itself; the second takes 75 MiB and
    a second of CPU, also without the dashboard.
    """
    from ray._private.node import Node

    parameters.ray_client_server_port = None
    Node.start_api_server = lambda *_args, **_options: None


def main(command: list[str]) -> int:
    """Run `ray start`, and return an exit code when one of the servers that it has started ends."""
    signal.signal(signal.SIGTERM, _end)
    kinship.adopt_orphans()
    if code := subprocess.call(command):
        return code
    servers = _children()
    while True:
        pid, status = os.wait()  # of workers' orphans, too
        if pid in servers:
            print(f"{servers.pop(pid)} ended: {os.waitstatus_to_exitcode(status)}", flush=True)
            _kill(servers, signal.SIGKILL)
            return 1


def _children() -> dict[int, str]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(pid): Path(f"/proc/{pid}/comm").read_text().strip() for pid in listed.split()}


def _end(_number: int, _frame: FrameType | None) -> None:
    _kill(_children(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    deadline = time.monotonic() + _KILL_SECONDS
    with contextlib.suppress(ChildProcessError):  # none is left
        # Again and again: with each server that ends, this process becomes the parent of what that one has started.
        while True:
            _kill(_children(), signal.SIGKILL)
            if time.monotonic() > deadline:
                break
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
    os._exit(0)


def _kill(processes: Iterable[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
