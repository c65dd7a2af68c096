"""The orphan reaper: a dead owner leaves no engine process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import psutil

from inference.engines import orphan_reaper
from tests.support.rows import until

OWNER = """
import subprocess, sys, time
from inference.engines import orphan_reaper
orphan_reaper.start(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_killed_owner_takes_its_engines_processes_along() -> None:
    tag = uuid.uuid4().hex
    owner = subprocess.Popen([sys.executable, "-c", OWNER, tag], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    until(lambda: ended(child))


def test_only_processes_with_the_tag_are_killed() -> None:
    tags = [uuid.uuid4().hex, uuid.uuid4().hex]
    ours, others = (
        subprocess.Popen(
            [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"],
            env={**os.environ, orphan_reaper.TAG: tag},
            stdout=subprocess.PIPE,
        )
        for tag in tags
    )
    for process in (ours, others):
        assert process.stdout is not None and process.stdout.readline()
    assert orphan_reaper.reap(tags[0]) == 1
    ours.wait(60)
    assert others.poll() is None
    assert orphan_reaper.reap(tags[1]) == 1
    others.wait(60)
