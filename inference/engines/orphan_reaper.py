"""Kills the processes of an engine whose owner has died: `python -m inference.engines.orphan_reaper TAG OWNER_PID`.

The processes of an engine (vLLM's EngineCore and workers) outlive an owner that is killed with SIGKILL. A dead process
has no children any more, so an environment variable that they inherit tags them.
"""

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
    """Tag all processes that this one starts later. A reaper kills them if this one dies."""
    os.environ[TAG] = tag
    subprocess.Popen(
        [sys.executable, "-m", "inference.engines.orphan_reaper", tag, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def reap(tag: str, timeout: float = 10) -> int:
    """Kill every other process of this machine with the tag, and return their number."""
    orphans = [process for process in psutil.process_iter() if process.pid != os.getpid() and _has_tag(process, tag)]
    for process in orphans:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(orphans, timeout=timeout)
    return len(orphans)


def _has_tag(process: psutil.Process, tag: str) -> bool:
    try:
        return bool(process.environ().get(TAG) == tag)
    except (psutil.Error, OSError):
        return False  # ended, a zombie, or another user's


def main() -> None:
    tag, owner = sys.argv[1], int(sys.argv[2])
    while os.getppid() == owner:
        time.sleep(POLL_SECONDS)
    reap(tag)


if __name__ == "__main__":
    main()
