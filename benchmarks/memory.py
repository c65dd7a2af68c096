"""Memory and control cost of a big batch: does either grow with the file?

Runs batches of `echo` requests (simulated: no model, so all of it is control cost) of rising size through a stack of
its own, over HTTP, and samples the resident memory of every process of the stack once a second. Then runs jobs of two
stages, one request of an item in each, in the same way. Then merges answers of ordinary and of great size, each in a
process of its own. Writes `benchmarks/results/memory.json` (every sample) and `memory.md` (the tables).

    python benchmarks/memory.py [--requests 40000 1000000] [--items 40000 1000000]
    python benchmarks/memory.py --merge 20000 150000
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import harness
import psutil
import pyarrow as pa

from batchyard.client.api import ApiClient
from batchyard.statuses import TERMINAL
from store.artifacts import Artifacts
from store.formats import chunks
from store.formats.plan import PlanWriter, SegmentSize
from tasks.finishing import result_files

SETTINGS = {
    "BATCHYARD_ALLOW_SIMULATED": "1",
    "BATCHYARD_MAX_REQUESTS": "10000000",
    "BATCHYARD_MAX_FILE_BYTES": "10000000000",
    "BATCHYARD_MAX_ITEMS": "10000000",
    "BATCHYARD_SEGMENT_REQUESTS": "20000",
    "BATCHYARD_RECIPES": str(Path(__file__).parent / "job_recipes"),
}
STAGES = 2
"""Stages of a job."""
MERGES = ((50_000, 500), (20_000, 150_000))
"""Answers and their bytes."""
CHUNK_BYTES = 32 * 1024 * 1024
MODELS = '[models.echo]\nengine = "echo"\nmax_in_flight = 1024\n'


class Sampler:
    """Samples of the resident memory of the stack's processes, in MiB, by the name of the service."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.samples: list[dict[str, float]] = []
        self._started = time.monotonic()

    def processes(self) -> dict[str, list[psutil.Process]]:
        groups: dict[str, list[psutil.Process]] = {}
        for file in (self._data / "run").glob("*.pid"):
            root = psutil.Process(int(file.read_text()))
            groups[file.stem] = [root, *root.children(recursive=True)]
        return groups

    def sample(self, answered: int) -> None:
        entry = {"seconds": round(time.monotonic() - self._started, 1), "answered": float(answered)}
        for name, processes in self.processes().items():
            sizes = [self._size(process) for process in processes]
            entry[name] = round(max(sizes) if name == "worker" else sum(sizes), 1)
            if name == "worker":
                largest = processes[sizes.index(max(sizes))]
                entry["worker shared"] = round(largest.memory_info().shared / 2**20, 1)
        self.samples.append(entry)

    @staticmethod
    def _size(process: psutil.Process) -> float:
        try:
            return process.memory_info().rss / 2**20
        except psutil.NoSuchProcess:
            return 0.0


def busy_seconds() -> float:
    """CPU time of the whole machine so far, without this client's.

    Ray's processes come and go, so that their times cannot be added up.
    """
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0)) - time.process_time()


def run(server: ApiClient, data: Path, number: int) -> dict[str, Any]:
    """Run a batch of so many requests. Raises SystemExit if its output is not whole and in order."""
    source = data.parent / f"{number}.jsonl"
    harness.write_requests(source, harness.questions(number, "echo"))
    measured = Measured(data, source)
    file_id = server.upload(source)
    batch = measured.until_end(server.create(file_id, endpoint=harness.CHAT), server.batch)
    check(server, batch["output_file_id"], data, number)
    return {"requests": number, **measured.report(number)}


def run_job(server: ApiClient, data: Path, number: int) -> dict[str, Any]:
    """Run a job of so many items. Raises SystemExit if its results are not whole and in order."""
    source = data.parent / f"{number}.jsonl"
    with source.open("w") as file:
        for index in range(number):
            item = {"custom_id": f"r-{index}", "prompt": f"Question {index}", "lengths": [16] * STAGES}
            file.write(json.dumps(item) + "\n")
    measured = Measured(data, source)
    file_id = server.upload(source, purpose="user_data")
    body: dict[str, Any] = {"recipe": "chain", "options": {"model": "echo", "depth": STAGES}}
    job = measured.until_end(server.create_job(**body, input_file_id=file_id), server.job)
    results = next(one for one in job["batchyard"]["artifacts"] if one["name"] == "results.jsonl")
    check(server, results["file_id"], data, number)
    return {"items": number, **measured.report(STAGES * number)}


class Measured:
    """The cost of a batch or job, from here to its end."""

    def __init__(self, data: Path, source: Path) -> None:
        self._sampler, self._source = Sampler(data), source
        self._sampler.sample(0)
        self._cpu, self._started = busy_seconds(), time.monotonic()

    def until_end(self, current: dict[str, Any], read: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Sample once a second. Raises SystemExit if it does not complete."""
        while current["status"] not in TERMINAL:
            time.sleep(1)
            current = read(current["id"])
            self._sampler.sample(current["request_counts"]["completed"])
        self._seconds, self._cpu = time.monotonic() - self._started, busy_seconds() - self._cpu
        if current["status"] != "completed":
            raise SystemExit(f"it ended as {current['status']}: {current}")
        return current

    def report(self, requests: int) -> dict[str, Any]:
        samples = self._sampler.samples
        names = ("web", "worker", "worker shared", "webhooks", "redis", "beat")
        return {
            "input_mb": round(self._source.stat().st_size / 1e6, 1),
            "seconds": round(self._seconds, 1),
            "requests_per_second": round(requests / self._seconds),
            "cpu_ms_per_request": round(1000 * self._cpu / requests, 3),
            "peak_mib": {name: max(sample.get(name, 0.0) for sample in samples) for name in names},
            "samples": samples,
        }


def check(server: ApiClient, file_id: str, data: Path, number: int) -> None:
    """Raise SystemExit unless the file has a line for each custom_id, in input order."""
    output = data.parent / "output.jsonl"
    server.download(file_id, output)
    with output.open() as answers:
        ids = [json.loads(line)["custom_id"] for line in answers]
    output.unlink()
    if ids != [f"r-{index}" for index in range(number)]:
        raise SystemExit(f"{len(ids)} lines for {number}, or not in input order")


def answered(url: str, answers: int, size: int) -> tuple[list[tuple[str, int]], list[str]]:
    """Store a plan, and result chunks in a random order of lines. Return the plan's row groups, and the chunks."""
    artifacts, chance = Artifacts(url), random.Random(1)
    lines = chance.sample(range(1, answers + 1), answers)
    with artifacts.create() as file:
        plan = PlanWriter(file, {"m": SegmentSize(20_000)})
        for line in lines:
            plan.add("m", line, f"r-{line}", b"{}")
        plan.close()
    vectors = "".join(chance.choices("0123456789,.-", k=2 * size))
    names, rows = [], min(20_000, max(1, CHUNK_BYTES // size))
    for first in range(0, answers, rows):
        part = lines[first : first + rows]
        starts = (chance.randrange(size) for _ in part)
        texts = [f'{{"custom_id":"r-{n}","x":"{vectors[at : at + size]}"}}' for n, at in zip(part, starts, strict=True)]
        columns = {"line": pa.array(part, pa.int64()), "ok": [True] * len(part), "answer": texts}
        columns["seconds"] = [1.0] * len(part)
        names.append(chunks.write(artifacts, pa.table(columns)))
    return [(file.sha256, number) for number in range(len(plan.segments))], names


def merge(answers: int, size: int) -> dict[str, Any]:
    """Merge so many answers in this process. Return the seconds, and the MiB that the process grew by at most."""
    with tempfile.TemporaryDirectory(prefix="by-") as folder:
        artifacts = Artifacts(f"file://{folder}")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
            small = other.submit(answered, artifacts.url, 10, 10).result()
            plans, names = other.submit(answered, artifacts.url, answers, size).result()
        create = artifacts.create
        with create() as output, create() as errors, create() as times, create() as rows:
            source = artifacts.put(b"\n" * answers)
            result_files.merge(artifacts, *small, None, source, output, errors, times, rows)  # imports what it needs
        Path("/proc/self/clear_refs").write_text("5")  # from here on the peak counts
        before, started = resident("VmRSS"), time.monotonic()
        with create() as output, create() as errors, create() as times, create() as rows:
            result_files.merge(artifacts, plans, names, None, source, output, errors, times, rows)
        seconds = round(time.monotonic() - started, 2)
        return {
            "answers": answers,
            "output_mb": round(output.size / 1e6),
            "seconds": seconds,
            "growth_mib": round(resident("VmHWM") - before),
        }


def resident(name: str) -> float:
    """The resident memory of this process in MiB: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def table(report: dict[str, Any]) -> str:
    notes = (
        "Engine `echo` (simulated), so all of it is control cost. Memory is the highest resident size sampled, "
        f"CPU the whole machine's but for this client's, which samples. A job's item makes {STAGES} requests, one "
        "after the other. Process `webhooks` runs the jobs."
    )
    columns = ["requests", "input MB", "whole s", "requests/s", "CPU ms a request"]
    columns += ["web MiB", "largest worker process MiB", "of it shared", "webhooks MiB"]
    rows = [
        [
            f"{run['requests']:,} in a batch" if "requests" in run else f"{STAGES} x {run['items']:,} in a job",
            *(run["input_mb"], run["seconds"], f"{run['requests_per_second']:,}", run["cpu_ms_per_request"]),
            *(run["peak_mib"][name] for name in ("web", "worker", "worker shared", "webhooks")),
        ]
        for run in report["runs"]
    ]
    merges = [list(entry.values()) for entry in report["merges"]]
    merged = harness.table(["answers merged", "output MB", "seconds", "growth of the process MiB"], merges)
    return "\n\n".join([harness.table(columns, rows), notes, merged])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="*", default=[40_000, 1_000_000], help="sizes of the batches")
    parser.add_argument("--items", type=int, nargs="*", default=[40_000, 1_000_000], help="sizes of the jobs")
    parser.add_argument(
        "--merge", type=int, nargs=2, metavar=("ANSWERS", "BYTES"), help="only merge so many answers, and print as JSON"
    )
    arguments = parser.parse_args()
    if arguments.merge:
        print(json.dumps(merge(*arguments.merge)))
        return
    machine = harness.machine("celery", "ray", "pyarrow", "flask", "sqlalchemy")
    with harness.stack(MODELS, SETTINGS) as (server, data):
        run(server, data, 1000)  # starts the engine and the workers' Ray connections
        runs = [run(server, data, number) for number in arguments.requests]
        runs += [run_job(server, data, number) for number in arguments.items]
    command = [sys.executable, __file__, "--merge"]
    merges = [json.loads(subprocess.check_output([*command, *map(str, sizes)])) for sizes in MERGES]
    report = {"machine": machine, "settings": SETTINGS, "runs": runs, "merges": merges}
    harness.write("memory", report, table(report))


if __name__ == "__main__":
    main()
