"""A child process is found by its tag and ends with its descendants; restarts come ever later, its log stays short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from batchyard.local import process
from batchyard.local.process import ChildProcess


@pytest.fixture
def child(tmp_path: Path) -> Iterator[ChildProcess]:
    """A process that has started another one."""
    child = ChildProcess(
        "web",
        [sys.executable, "-c", "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"],
        environment=dict(os.environ),
        tag=f"{tmp_path}#web",
        log=tmp_path / "web.log",
        pid_file=tmp_path / "web.pid",
    )
    yield child
    process.kill_tagged(str(tmp_path))


def started(child: ChildProcess) -> list[psutil.Process]:
    """Start a child, and return its process and that of its child."""
    child.start()
    deadline = time.monotonic() + 60
    while len(processes := process.tagged(child.tag)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return processes


def test_all_descendants_have_the_tag_and_the_folders_tag_covers_them(child: ChildProcess, tmp_path: Path) -> None:
    pids = {entry.pid for entry in started(child)}
    assert {entry.pid for entry in process.tagged(str(tmp_path))} == pids
    assert process.tagged(str(tmp_path)[:-1], f"{tmp_path}#we", f"{tmp_path}x") == []
    assert int((tmp_path / "web.pid").read_text()) in pids


def test_a_dead_process_takes_its_descendants_along_and_each_restart_is_later(child: ChildProcess) -> None:
    started(child)
    assert child.runs() and child.exit_code() is None
    assert isinstance(child.process, subprocess.Popen)
    child.process.kill()
    child.process.wait()
    assert not child.runs() and child.exit_code() == -signal.SIGKILL
    assert [child.plan_restart() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert process.tagged(child.tag) == []


def test_after_a_minute_without_failure_restarts_begin_at_one_second_again(child: ChildProcess) -> None:
    child.started = time.monotonic()
    assert [child.plan_restart() for _ in range(3)] == [1, 2, 4]
    child.started = time.monotonic() - 61
    assert child.plan_restart() == 1


def test_what_ignores_the_end_is_killed_after_its_grace() -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stdout.readline()
        process.end([psutil.Process(running.pid)], grace=0.2)
        assert running.wait() == -signal.SIGKILL


def test_the_last_line_of_a_log_is_the_last_that_says_something(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    log.write_text("x" * 10_000 + "\nwhy it ended\n\n  \n")
    assert process.last_line(log) == "why it ended"
    log.write_text("\n")
    assert process.last_line(log) == "its log is empty"


def test_a_log_that_grew_too_long_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOG_BYTES", 10)
    log = tmp_path / "web.log"
    with log.open("a") as writer:
        writer.write("the line before\n")
        writer.flush()
        process.rotate(log)
        writer.write("and after\n")
    assert log.read_text() == "and after\n"
    assert (tmp_path / "web.log.1").read_text() == "the line before\n"
