"""Starts and stops of whole stacks: `python -m tests.chaos.starts --times 50 --at-once 2`.

Each start is a `batchyard up` in a new data folder with one `echo` model. Printed are the seconds until it was ready,
those until it had ended after SIGTERM, and what was left of it then.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from batchyard.local.process import kill, tagged
from tests.support.stacks import RunningStack

END_SECONDS = 60
_MODELS = "[models.echo]\nengine = 'echo'\n"


@dataclass(frozen=True)
class Start:
    """One start and stop. `problems` has why it did not start or end, and what it left."""

    ready_seconds: float
    stop_seconds: float
    problems: Sequence[str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.starts", description=__doc__)
    parser.add_argument("--times", type=int, default=50, help="how many stacks start and stop [50]")
    parser.add_argument("--at-once", type=int, default=2, help="so many at the same time [2]")
    options = parser.parse_args()
    starts = []
    with ThreadPoolExecutor(options.at_once) as pool:
        for number, start in enumerate(pool.map(lambda _: run(), range(options.times)), 1):
            print(f"{number}: ready {start.ready_seconds:.1f} s, stopped {start.stop_seconds:.1f} s", *start.problems)
            sys.stdout.flush()
            starts.append(start)
    for name, seconds in (
        ("ready", [start.ready_seconds for start in starts]),
        ("stopped", [start.stop_seconds for start in starts]),
    ):
        print(f"{name}: median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s")
    failed = sum(bool(start.problems) for start in starts)
    print(f"{len(starts)} starts, {failed} with problems")
    return 1 if failed else 0


def run() -> Start:
    """Start a stack in a new folder, and stop it."""
    folder = Path(tempfile.mkdtemp(prefix="by-"))  # short: the path of a socket is limited
    (folder / "models.toml").write_text(_MODELS)
    began = time.monotonic()
    try:
        stack = RunningStack.restart(folder / "data", BATCHYARD_ALLOW_SIMULATED="1")
    except AssertionError:
        problems = [f"did not start: {(folder / 'up.log').read_text().strip()}", *_left(folder)]
        return Start(time.monotonic() - began, 0.0, problems)
    ready = time.monotonic()
    stack.process.send_signal(signal.SIGTERM)
    problems = []
    try:
        if code := stack.process.wait(END_SECONDS):
            problems.append(f"exit code {code}")
    except subprocess.TimeoutExpired:
        problems.append(f"still ran after {END_SECONDS} s")
    stopped = time.monotonic()
    problems += _left(folder)
    stack.kill()
    if not problems:
        shutil.rmtree(folder)
    return Start(ready - began, stopped - ready, problems)


def _left(folder: Path) -> list[str]:
    """Return what a stack left running, and its pid files."""
    data = folder / "data"
    strays = tagged(str(data))
    names = [f"left process {stray.pid} {stray.name()}" for stray in strays]
    kill(strays)
    return names + [f"left {file}" for file in (data / "run").glob("*.pid")]


if __name__ == "__main__":
    sys.exit(main())
