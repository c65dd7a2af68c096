"""The head of a Ray cluster is one small process: it ends with the servers that `ray start` leaves, and ends them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from ray._private.node import Node

from batchyard.local import ray_head
from tests.support.rows import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
STARTS_TWO_SERVERS = "sleep 100 & echo $! >>pids; sleep 100 & echo $! >>pids"


@contextmanager
def head(folder: Path, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a head whose `ray start` is a shell's script."""
    command = [sys.executable, "-m", "batchyard.local.ray_head", "sh", "-c", f"cd {folder}; {script}"]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def servers(head: subprocess.Popen[bytes], folder: Path) -> list[psutil.Process]:
    """Wait until the head's only children are the two servers; return them."""

    def pids() -> list[int]:
        return [int(pid) for pid in (folder / "pids").read_text().split()] if (folder / "pids").exists() else []

    until(lambda: len(pids()) == 2 and {child.pid for child in psutil.Process(head.pid).children()} == {*pids()})
    return [psutil.Process(pid) for pid in pids()]


def test_a_server_that_dies_ends_the_head_and_the_other_servers(tmp_path: Path) -> None:
    with head(tmp_path, STARTS_TWO_SERVERS) as process:
        first, second = servers(process, tmp_path)
        first.kill()
        assert process.wait(60) == 1
        assert psutil.wait_procs([second], 60)[1] == []


def test_sigterm_ends_the_servers_too(tmp_path: Path) -> None:
    with head(tmp_path, STARTS_TWO_SERVERS) as process:
        running = servers(process, tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert psutil.wait_procs(running, 60)[1] == []


def test_sigterm_ends_servers_that_do_not_heed_it(tmp_path: Path) -> None:
    with head(tmp_path, f"trap '' TERM; {STARTS_TWO_SERVERS}") as process:
        running = servers(process, tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert psutil.wait_procs(running, 60)[1] == []


def test_a_start_that_fails_is_the_heads_failure(tmp_path: Path) -> None:
    with head(tmp_path, "exit 3") as process:
        assert process.wait(60) == 3


IMPORTED = """
import atexit, sys
from batchyard.local import ray_command

atexit.register(lambda: print(sorted({"fastapi", "pandas"} & sys.modules.keys())))
ray_command.main()
"""


def test_ray_starts_without_the_imports_of_its_other_commands() -> None:
    command = [sys.executable, "-c", IMPORTED, "start", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout
    assert "--include-log-monitor" in shown
    assert shown.endswith("\n[]\n")


def test_neither_rays_remote_clients_nor_its_dashboard_get_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "start_api_server", Node.start_api_server)
    parameters = SimpleNamespace(ray_client_server_port=10001)
    ray_head.start_less(parameters, head=True)
    assert parameters.ray_client_server_port is None
    assert Node.start_api_server(SimpleNamespace(), include_dashboard=False, raise_on_failure=False) is None
