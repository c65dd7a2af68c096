"""Processes end with their parent, or are adopted where they lose it."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")

# A process with a child, whose pid it prints; the child says "ready" once it has done what is tried.
PARENT = """
import os, time
from batchyard import kinship
{before}
if (pid := os.fork()) == 0:
    {child}
    print("ready", os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""


def start(child: str, before: str = "") -> tuple[subprocess.Popen[str], psutil.Process]:
    """Start a process with a child, and return both once the child is ready."""
    program = PARENT.format(child=child, before=before)
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, psutil.Process(int(parent.stdout.readline().split()[1]))


def end(parent: subprocess.Popen[str]) -> None:
    """Kill a process as the kernel does when memory is short: it can do nothing about it."""
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert parent.stdout is not None
    parent.stdout.close()


def test_a_process_ends_with_its_killed_parent() -> None:
    parent, child = start("kinship.end_with_parent()")
    end(parent)
    assert psutil.wait_procs([child], timeout=40)[0] == [child]


def test_an_orphan_is_adopted_by_the_nearest_ancestor_that_adopts() -> None:
    orphan = "if os.fork(): os._exit(0)\n    while os.getppid() != adopter: time.sleep(0.01)"
    parent, child = start(orphan, "kinship.adopt_orphans(); adopter = os.getpid()")
    try:
        assert child.ppid() == parent.pid
    finally:
        child.kill()
        end(parent)
