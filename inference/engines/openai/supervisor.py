"""Runs a command and ends all its processes: `python -m inference.engines.openai.supervisor STOP_SECONDS COMMAND…`.

It leads a session, and its owner holds a pipe to its standard input. When the owner closes the pipe or dies, the
processes get SIGTERM, and after STOP_SECONDS SIGKILL. When the command ends by itself, what it leaves behind is killed.
The supervisor ends as the command did: with its exit code, or by its signal.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time

import psutil

from batchyard import kinship

NO_PROGRAM = 127
"""Exit code of a command that cannot be started, as shells have it."""
KILL_SECONDS = 10.0
"""A killed process that is still there after this long waits for a device, and nothing ends it."""
POLL_SECONDS = 0.05


def run(command: list[str], stop_seconds: float) -> int:
    """Run the command until it ends, or standard input does. Return its exit code; negative: its signal."""
    kinship.adopt_orphans()
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):  # the two last are for the command
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=kinship.end_with_parent)
    code, until = None, 0.0
    while code is None:
        if 0 in select.select([0, ended], [], [])[0]:
            os.killpg(0, signal.SIGTERM)
            until = time.monotonic() + stop_seconds
            break
        os.read(ended, 4096)
        code = _reap(child.pid)
    until = max(until, time.monotonic())
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < until + KILL_SECONDS:
        for process in left if time.monotonic() >= until else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(POLL_SECONDS)
        reaped = _reap(child.pid)
        code = reaped if code is None else code
    return code or 0


def _reap(pid: int) -> int | None:
    """Reap the children that have ended. Return the exit code of `pid` if it is one of them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1]) if ended[0] == pid else code
    return code


def main() -> None:
    try:
        code = run(sys.argv[2:], float(sys.argv[1]))
    except OSError as error:
        print(f"{sys.argv[2]}: {error.strerror}", flush=True)
        code = NO_PROGRAM
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
