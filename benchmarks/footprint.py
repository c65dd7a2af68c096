"""What an idle stack costs: processes, memory, CPU, the seconds from start to ready and from Ctrl-C to gone.

    python benchmarks/footprint.py [--seconds 60] [--times 3]

Memory is the proportional set size (PSS): a page that several processes share counts once. Linux only.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from harness import machine, table, write

from batchyard.local import process
from batchyard.local_state import local_state

MODELS = Path(__file__).parent.parent / "models.toml"
SETTLE_SECONDS = 20.0
"""After `ready` the processes still import, and Ray starts its first workers."""


class Idle(NamedTuple):
    """Processes, PSS in bytes and CPU seconds of a group of processes."""

    processes: int
    memory: int
    cpu: float


def idle(up: psutil.Process, data: Path, seconds: float) -> dict[str, Idle]:
    """Return what each part of the stack costs while nobody uses it, by the name of the part."""
    meter = CpuMeter(up, data)
    time.sleep(seconds)
    cpu = meter.by_part()
    memory: dict[str, list[int]] = defaultdict(list)
    for entry in stack_processes(up, data):
        memory[part(entry, up, data)].append(entry.memory_full_info().pss)
    return {name: Idle(len(values), sum(values), cpu.get(name, 0.0)) for name, values in memory.items()}


class CpuMeter:
    """CPU seconds of each part of the stack since it was made."""

    def __init__(self, up: psutil.Process, data: Path) -> None:
        self._up, self._data = up, data
        self._before = self._now()

    @classmethod
    def of(cls, data: Path) -> CpuMeter:
        """Return one of the stack that runs with this data folder."""
        return cls(psutil.Process(local_state(data)["pid"]), data)

    def _now(self) -> dict[psutil.Process, float]:
        return {entry: cpu_seconds(entry) for entry in stack_processes(self._up, self._data)}

    def by_part(self) -> dict[str, float]:
        parts: dict[str, float] = defaultdict(float)
        for entry, seconds in self._now().items():
            parts[part(entry, self._up, self._data)] += seconds - self._before.get(entry, 0.0)
        return dict(parts)


def stack_processes(up: psutil.Process, data: Path) -> list[psutil.Process]:
    return list({up, *up.children(), *process.tagged(str(data))})


def cpu_seconds(entry: psutil.Process) -> float:
    times = entry.cpu_times()
    return times.user + times.system


def part(entry: psutil.Process, up: psutil.Process, data: Path) -> str:
    """Return the part's name; of Ray's processes each is a part."""
    if entry == up:
        return "up"
    name = entry.environ()[process.TAG].removeprefix(f"{data}#").removesuffix(f" of {data}")
    return f"ray: {entry.name()}" if name == "ray" else name


def run(seconds: float) -> dict[str, Any]:
    """Start a stack of its own, look at it while it is idle, end it."""
    with tempfile.TemporaryDirectory(prefix="by-") as folder:
        data = Path(folder) / "data"
        arguments = ["--port=0", "--flower-port=0", f"--data={data}", f"--models={MODELS}"]
        command = [sys.executable, "-m", "batchyard.cli", "up", *arguments]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
            while local_state(data).get("pid") != up.pid:
                if up.poll() is not None:
                    raise SystemExit(f"the stack ended with {up.returncode}")
                time.sleep(0.05)
            ready_seconds = time.monotonic() - began
            time.sleep(SETTLE_SECONDS)
            parts = idle(psutil.Process(up.pid), data, seconds)
            began = time.monotonic()
            up.send_signal(signal.SIGINT)
            up.wait()
            gone = time.monotonic() - began
    return {"ready": ready_seconds, "gone": gone, "parts": {name: values._asdict() for name, values in parts.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the idle stack is looked at")
    parser.add_argument("--times", type=int, default=3, help="stacks, one after the other")
    options = parser.parse_args()
    facts = machine("ray", "celery")
    runs = [run(options.seconds) for _ in range(options.times)]
    names = sorted({name for result in runs for name in result["parts"]})

    def middle(name: str, key: str) -> float:
        return statistics.median(result["parts"].get(name, {}).get(key, 0) for result in runs)

    rows = [
        (
            name,
            f"{middle(name, 'processes'):.0f}",
            f"{middle(name, 'memory') / 2**20:.0f}",
            f"{middle(name, 'cpu') / options.seconds:.2%}",
        )
        for name in names
    ]
    totals = {
        key: statistics.median(sum(part[key] for part in result["parts"].values()) for result in runs)
        for key in Idle._fields
    }
    rows.append(
        (
            "**all**",
            f"{totals['processes']:.0f}",
            f"**{totals['memory'] / 2**20:.0f}**",
            f"**{totals['cpu'] / options.seconds:.2%}**",
        )
    )
    seconds = {key: statistics.median(result[key] for result in runs) for key in ("ready", "gone")}
    write(
        "footprint",
        {"machine": facts, "runs": runs},
        table(("part", "processes", "PSS, MiB", "of one core"), rows),
        f"Ready {seconds['ready']:.1f} s after its start, gone {seconds['gone']:.1f} s after Ctrl-C (medians).",
    )


if __name__ == "__main__":
    main()
