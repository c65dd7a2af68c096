"""The first process of a host: it starts the host's services, and starts each again when it ends.

    python -m tests.chaos.supervisor host.json

It does what `restart: unless-stopped` does: what is left of a service that ended is killed, as with its container. Its
own end is the end of every process of the host. It ends when its standard input does: nothing outlives the campaign.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAG = "CHAOS_SERVICE"
"""The environment variable that names the service of a process."""
RESTART_SECONDS = 1.0


@dataclass
class Service:
    """A service and the process that runs it now."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    pid: int | None = None
    due: float = 0.0

    def start(self) -> None:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment, TAG: self.name},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = process.pid
        process.returncode = 0  # `_reap` waits for it

    def end(self) -> None:
        """Kill what is left of the service, and plan its restart."""
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and f"{TAG}={self.name}\0".encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
        self.pid, self.due = None, time.monotonic() + RESTART_SECONDS


def prepare(host: dict[str, Any]) -> None:
    """Give the host its own name, folder, shared memory and small disks."""
    socket.sethostname(host["name"])
    mount("--bind", host["folder"], host["here"])
    mount("-t", "tmpfs", "-o", "size=512m", "tmpfs", "/dev/shm")
    for path, size in host["disks"].items():
        mount("-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", path)
    os.chdir(host["here"])


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _reap() -> set[int]:
    """Return the ids of the processes that have ended."""
    ended = set()
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(pid)
    return ended


def main() -> None:
    host = json.loads(Path(sys.argv[1]).read_text())
    prepare(host)
    services = [Service(log=Path(f"log/{service['name']}"), **service) for service in host["services"]]
    print("ready", flush=True)
    while True:
        ended = _reap()
        for service in services:
            if service.pid in ended:
                service.end()
            if service.pid is None and time.monotonic() >= service.due:
                service.start()
        if select.select([sys.stdin], [], [], 0.1)[0] and not sys.stdin.buffer.read1():
            return


if __name__ == "__main__":
    main()
