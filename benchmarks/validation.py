"""The speed of validation and planning, beside `wc -l` and a bare loop of a JSON parser over the same file.

Writes a file of chat requests of about 4 KB, the same at each run, measures all four in turn three times, and the
memory that a fresh process needs to validate; then sends the file through a running stack until its batch is planned.
Writes `benchmarks/results/validation.json` (every run) and `validation.md` (the table).

    python benchmarks/validation.py [--requests 50000]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import orjson
import psutil

from batchyard.cli import background
from batchyard.models import ModelSpec
from batchyard.settings import Settings
from batchyard.statuses import TERMINAL
from store.artifacts import Artifacts
from store.formats.plan import PlanWriter, SegmentSize
from tasks.intake.validation import ValidationReport, Validator

ROUNDS = 3
ENDPOINT = "/v1/chat/completions"
LINE_BYTES = 4000
WORDS = ["wagon", "yard", "train", "signal", "track", "engine", "coupling", "brake", "gauge", "shunter", "timetable"]


def write_requests(path: Path, number: int) -> None:
    chance = random.Random(0)
    with path.open("w") as file:
        for index in range(number):
            system = "You answer in one sentence. " + " ".join(chance.choices(WORDS, k=80))
            question = f'Question {index}: what does "{chance.choice(WORDS)}" mean here?\n'
            while len(question) < LINE_BYTES - len(system) - 300:
                question += " ".join(chance.choices(WORDS, k=20)) + f": {chance.random()} é\n"
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            body = {"model": "echo", "messages": messages, "max_tokens": 256, "temperature": 0.7, "seed": index}
            line = {"custom_id": f"r-{index}", "method": "POST", "url": ENDPOINT, "body": body}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def count_lines(path: Path) -> None:
    subprocess.run(["wc", "-l", path], check=True, capture_output=True)


def parse(loads: Callable[[bytes], Any]) -> Callable[[Path], None]:
    def parse_lines(path: Path) -> None:
        with path.open("rb") as file:
            for line in file:
                loads(line)

    return parse_lines


def validate(path: Path) -> None:
    """Validate and plan, as the worker does."""
    settings = Settings()
    models = {"echo": ModelSpec(name="echo", engine="echo")}
    report = ValidationReport()
    with tempfile.TemporaryDirectory(prefix="by-", dir=path.parent) as folder:
        artifacts = Artifacts(f"file://{folder}")
        with path.open("rb") as source, artifacts.create() as target:
            plan = PlanWriter(target, dict.fromkeys(models, SegmentSize(settings.segment_requests)), artifacts)
            Validator(models, ENDPOINT, settings.model_copy(update={"max_requests": 10**9})).run(source, plan, report)
            plan.close()
    if report.count:
        raise SystemExit(f"{report.count} errors in a good file, the first: {report.errors[0]}")


WAYS: dict[str, Callable[[Path], None]] = {
    "`wc -l`": count_lines,
    "`orjson.loads` of each line": parse(orjson.loads),
    "`json.loads` of each line": parse(json.loads),
    "validation and plan": validate,
}


def grown_mib(path: Path) -> float:
    """The growth of this fresh process's peak resident size by validation."""
    before = psutil.Process().memory_info().rss
    validate(path)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return round((peak - before) / 2**20, 1)


def through_http(path: Path) -> dict[str, Any]:
    """Send the same file through a running stack until its batch is planned: seconds, and growth of processes (MiB).

    A small batch goes first, so that modules that are loaded once do not count.
    """
    data = path.parent / "data"
    (path.parent / "models.toml").write_text('[models.echo]\nengine = "echo"\n')
    os.environ["BATCHYARD_ALLOW_SIMULATED"] = "1"
    small = path.parent / "small.jsonl"
    write_requests(small, 100)
    with background.stack(data, path.parent / "models.toml") as server:
        batch = server.create(server.upload(small), endpoint=ENDPOINT)
        while batch["status"] not in TERMINAL:
            time.sleep(0.2)
            batch = server.batch(batch["id"])
        roots = [psutil.Process(int((data / f"run/{name}.pid").read_text())) for name in ("web", "housekeeper")]
        processes = {process: process.memory_info().rss for root in roots for process in _tree(root)}
        grown = dict.fromkeys(processes, 0)
        started = time.monotonic()
        file_id = server.upload(path)
        upload_seconds = time.monotonic() - started
        batch = server.create(file_id, endpoint=ENDPOINT)
        while batch["status"] == "validating":
            for process, before in processes.items():
                grown[process] = max(grown[process], process.memory_info().rss - before)
            time.sleep(0.02)
            batch = server.batch(batch["id"])
        seconds = time.monotonic() - started
        server.control(batch["id"], "cancel")
    return {
        "upload_seconds": round(upload_seconds, 2),
        "planned_seconds": round(seconds, 2),
        "grown_mib": round(max(grown.values()) / 2**20, 1),
    }


def _tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def cpu_seconds() -> float:
    """CPU time so far of this process, its threads and the children that have ended."""
    return sum(os.times()[:4])


def run(path: Path) -> dict[str, dict[str, list[float]]]:
    measured: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "cpu_seconds": []} for name in WAYS}
    count_lines(path)  # the file is in the page cache for all of them
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            started, cpu_before = time.perf_counter(), cpu_seconds()
            way(path)
            measured[name]["seconds"].append(round(time.perf_counter() - started, 3))
            measured[name]["cpu_seconds"].append(round(cpu_seconds() - cpu_before, 2))
    return measured


def table(report: dict[str, Any]) -> str:
    rows = []
    for name, measured in report["ways"].items():
        seconds, cpu = (statistics.median(measured[key]) for key in ("seconds", "cpu_seconds"))
        speeds = f"{report['input_mb'] / seconds:,.0f} | {report['requests'] / seconds:,.0f}"
        rows.append(f"| {name} | {seconds:.2f} | {cpu:.2f} | {speeds} |")
    notes = (
        f"{report['requests']:,} chat requests, {report['input_mb']} MB, in the page cache; median of {ROUNDS} rounds, "
        f"in each of which every way took its turn, in one process. A fresh process grows by {report['grown_mib']} MiB "
        f"at most as it validates. Through a running stack over HTTP: {report['http']['upload_seconds']} s for the "
        f"upload, {report['http']['planned_seconds']} s until the batch is planned. No process of web or "
        f"housekeeper grows by more than {report['http']['grown_mib']} MiB meanwhile."
    )
    return "\n".join(["| | s | CPU s | MB/s | requests/s |", "|---" * 5 + "|", *rows, "", notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000, help="requests in the file")
    parser.add_argument("--grow", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.grow:
        print(grown_mib(arguments.grow))
        return
    machine = harness.machine("orjson", "pydantic", "pyarrow")
    with tempfile.TemporaryDirectory(prefix="by-") as folder:
        path = Path(folder) / "in.jsonl"
        write_requests(path, arguments.requests)
        fresh = [sys.executable, __file__, "--grow", str(path)]
        report = {
            "requests": arguments.requests,
            "input_mb": round(path.stat().st_size / 1e6, 1),
            "ways": run(path),
            "http": through_http(path),
            "grown_mib": float(subprocess.run(fresh, check=True, capture_output=True, text=True).stdout),
            "machine": machine,
        }
    harness.write("validation", report, table(report))


if __name__ == "__main__":
    main()
