"""One supervised child process: its own session, a pid file, a bounded log, an end that leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from batchyard.backoff import Backoff

# Not a BATCHYARD_* name: settings refuse unknown ones, and nobody sets this in a shell by accident.
TAG = "_BATCHYARD_STACK"
LOG_BYTES = 32 * 1024 * 1024
BACKOFF = Backoff(first=1.0, longest=30.0)
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass
class Child:
    """What to run, and the process that runs it.

    `mark` is put into its environment, and so into that of everything it starts: that is how strays are found.
    `ready` says whether it can be used; it is asked until it says so once. `nice` lowers its priority by so much.
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
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    started: float = 0.0
    due: float | None = field(default=None)

    def start(self) -> None:
        """Start it, in a session of its own; on Linux it gets `orphan_signal` when this thread dies."""
        rotate(self.log)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                cwd=self.folder,
                env={**self.environment, TAG: self.tag},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=prepare(self.orphan_signal, self.nice),
            )
        self.started, self.due = time.monotonic(), None
        self.pid_file.write_text(f"{self.process.pid}\n")

    def exit_code(self) -> int | None:
        """None while it runs (or was never started)."""
        return self.process.poll() if self.process is not None else None

    def plan_restart(self) -> float:
        """Clear away what a dead process left and set when to start it again; seconds until then: 1, 2, 4 … 30."""
        kill(tagged(self.tag))
        if time.monotonic() - self.started > 60:
            self.failures = 0
        self.failures += 1
        wait = BACKOFF.seconds(self.failures)
        self.due = time.monotonic() + wait
        return wait

    def signal_end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(self.end_signal)

    def wait_end(self) -> None:
        """Wait for its grace, then end it and all that carries its mark."""
        if self.process is not None:
            try:
                self.process.wait(self.grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        kill(tagged(self.tag))
        self.pid_file.unlink(missing_ok=True)


def prepare(orphan_signal: signal.Signals, nice: int = 0) -> Callable[[], None]:
    """For `preexec_fn`: on Linux, the child gets this signal when the thread that started it dies."""

    def ask_the_kernel() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(orphan_signal))
        os.nice(nice)

    return ask_the_kernel


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 8192))
        lines = stream.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")


def rotate(log: Path) -> None:
    """Keep one older log, and this one below LOG_BYTES. Its writers append, so truncating beneath them is safe."""
    if log.is_file() and log.stat().st_size > LOG_BYTES:
        shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)


def tagged(tag: str) -> list[psutil.Process]:
    """The processes whose mark is this one, or lies below it (`<data folder>` covers `<data folder>#ray`)."""
    found = []
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        try:
            value = process.environ().get(TAG, "")
            if process.pid not in own and (value == tag or value.startswith(tag + "#")):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or somebody else's
    return found


def end(processes: Iterable[psutil.Process], grace: float) -> None:
    """SIGTERM, a grace in seconds, SIGKILL."""
    remaining = list(processes)
    for process in remaining:
        _send(process, signal.SIGTERM)
    kill(psutil.wait_procs(remaining, timeout=grace)[1])


def kill(processes: Iterable[psutil.Process]) -> None:
    remaining = list(processes)
    for process in remaining:
        _send(process, signal.SIGKILL)
    psutil.wait_procs(remaining, timeout=5)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)  # psutil compares the start time first, so never a reused pid
    except psutil.NoSuchProcess:
        return
