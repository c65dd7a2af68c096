"""Ends the processes of an engine whose owner has died: `python -m inference.engines.orphan_reaper MARK OWNER_PID`.

An engine's own processes (vLLM's EngineCore and workers) outlive an owner that is killed with SIGKILL. They are found
by an environment variable that they inherit, because a dead process has no children any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time

import psutil

TAG = "BATCHYARD_ENGINE"
POLL_SECONDS = 0.5

log = logging.getLogger(__name__)


def start(tag: str) -> None:
    """Mark every process this one starts from now on, and start a guard that ends them should this one die."""
    os.environ[TAG] = tag
    subprocess.Popen(
        [sys.executable, "-m", "inference.engines.orphan_reaper", tag, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def reap(tag: str, timeout: float = 10) -> int:
    """End every process on this machine that carries the mark, but this one; how many they were."""
    found = [process for process in psutil.process_iter() if process.pid != os.getpid() and _carries(process, tag)]
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(found, timeout=timeout)
    return len(found)


def _carries(process: psutil.Process, tag: str) -> bool:
    try:
        return bool(process.environ().get(TAG) == tag)
    except (psutil.Error, OSError):
        return False  # gone, another user's, or a zombie: none of ours to end


def main() -> None:
    tag, owner = sys.argv[1], int(sys.argv[2])
    while os.getppid() == owner:
        time.sleep(POLL_SECONDS)
    reap(tag)


if __name__ == "__main__":
    main()
