"""A supervised child process: own session, pid file, bounded log, no stray descendants."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from batchyard import kinship
from batchyard.backoff import Backoff
from batchyard.local.fork_server import OWN_FILES, TAG, ForkedProcess, ForkServer, ServiceProgram

LOG_BYTES = 32 * 1024 * 1024
BACKOFF = Backoff(first=1.0, longest=30.0)


@dataclass
class ChildProcess:
    """A program's command line, and the process that runs it.

    `tag` is put into the environment of the process and so of all its descendants; `tagged` finds strays by it.
    `ready` returns True once the process can be used; it is polled until then. `nice` lowers the priority by so much.
    With a `fork_server` the process is a copy of that one.
    """

    name: str
    argv: list[str]
    environment: dict[str, str]
    tag: str
    log: Path
    pid_file: Path
    folder: Path | None = None
    end_signal: signal.Signals = signal.SIGTERM
    orphan_signal: signal.Signals = signal.SIGTERM
    grace: float = 5.0
    nice: int = 0
    ready: Callable[[], bool] = lambda: True
    fork_server: ForkServer | None = None
    process: subprocess.Popen[bytes] | ForkedProcess | None = None
    failures: int = 0
    started: float = 0.0
    due: float | None = field(default=None)

    def start(self) -> None:
        """Start the process in a session of its own. On Linux it gets `orphan_signal` when this thread dies."""
        rotate(self.log)
        environment = {TAG: self.tag, **self.environment}  # first: of a copy others see the first bytes only
        if self.fork_server is None:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    self.argv,
                    cwd=self.folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=OWN_FILES,
                    preexec_fn=prepare(self.orphan_signal, self.nice),
                )
        else:
            program = ServiceProgram(self.name, self.argv, environment, self.log, self.orphan_signal, self.nice)
            self.process = self.fork_server.fork(program)
        self.started, self.due = time.monotonic(), None
        self.pid_file.write_text(f"{self.process.pid}\n")

    def exit_code(self) -> int | None:
        """The exit code; None while the process runs or if it was never started."""
        return self.process.poll() if self.process is not None else None

    def plan_restart(self) -> float:
        """Kill a dead process's descendants, schedule its restart, return the delay: 1, 2, 4 … 30 s."""
        kill_tagged(self.tag)
        if time.monotonic() - self.started > 60:
            self.failures = 0
        self.failures += 1
        delay = BACKOFF.seconds(self.failures)
        self.due = time.monotonic() + delay
        return delay

    def signal_end(self) -> None:
        """Send `end_signal` to a process that runs."""
        if self.process is not None and self.runs():
            self.process.send_signal(self.end_signal)

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None


def prepare(orphan_signal: signal.Signals, nice: int = 0) -> Callable[[], None]:
    """Return a `preexec_fn`. On Linux the child then gets this signal when the thread that started it dies."""

    def prepare_child() -> None:
        kinship.end_with_parent(orphan_signal)
        os.nice(nice)

    return prepare_child


def last_line(log: Path) -> str:
    """The last line of a log that is not blank."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 8192))
        lines = stream.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")


def rotate(log: Path) -> None:
    """Keep this log below LOG_BYTES, and one older copy. Writers append, so truncating under them is safe."""
    if log.is_file() and log.stat().st_size > LOG_BYTES:
        shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)


def tagged(*tags: str) -> list[psutil.Process]:
    """Return the processes with one of these tags or one below it (`<data folder>` covers `<data folder>#ray`)."""
    matches = []
    callers = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # ended meanwhile, or somebody else's
            value = process.environ().get(TAG, "")
            if process.pid not in callers and (value in tags or value.startswith(tuple(f"{tag}#" for tag in tags))):
                matches.append(process)
    return matches


def end(processes: Iterable[psutil.Process], grace: float) -> None:
    """Send SIGTERM, wait `grace` seconds, send SIGKILL to what still runs."""
    kill(_signalled(processes, signal.SIGTERM, grace))


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL and wait up to 5 s for the end."""
    _signalled(processes, signal.SIGKILL, 5)


def kill_tagged(*tags: str) -> None:
    """Kill all processes with one of these tags, and what they start meanwhile."""
    deadline = time.monotonic() + 5
    while (processes := tagged(*tags)) and time.monotonic() < deadline:
        kill(processes)


def _signalled(processes: Iterable[psutil.Process], number: signal.Signals, seconds: float) -> list[psutil.Process]:
    """Send processes a signal, and return those that still run after so many seconds."""
    remaining = list(processes)
    for process in remaining:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)  # psutil compares the start time first, so never a reused pid
    deadline = time.monotonic() + seconds
    while (remaining := [process for process in remaining if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return remaining


def _runs(process: psutil.Process) -> bool:
    """True unless it has ended; a zombie has ended, too."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
