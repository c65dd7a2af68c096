"""What a small batch costs beside its answers: seconds that a client sees, and CPU seconds of the stack.

    python benchmarks/small_batches.py [--batches 30] [--engine echo|vllm]

1. Batches of 8 requests, one after the other: from POST /v1/batches until the output file is read.
2. The same 1,000 requests as 20 batches of 50 that are created at once, and as one batch.
3. The first batch of 1,000 requests after one of 8, and the second. Only for engine vllm, whose kernels come on use.

The requests differ between batches, so none is answered from the cache. All engines are warm but in 3.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

from footprint import CpuMeter
from harness import CHAT, Body, machine, stack, table, uploaded, write

from batchyard.client.api import ApiClient
from batchyard.statuses import TERMINAL

MODELS = {
    "echo": '[models.mini]\nengine = "echo"\nmax_in_flight = 256\n',
    "vllm": f"""[models.mini]
engine = "vllm"
source = "{Path(__file__).parent.parent / "examples/models/mini"}"
engine_args = {{ dtype = "float32", max_model_len = 512 }}
""",
}
POLL_SECONDS = 0.02
_numbers = count()


def requests(number: int) -> Iterator[Body]:
    """Yield short chat requests which no other batch of this run has."""
    for index in islice(_numbers, number):
        messages = [{"role": "user", "content": f"Is wagon {index} in the yard tonight?"}]
        yield {"model": "mini", "messages": messages, "max_tokens": 8}


def seconds_to_files(server: ApiClient, files: list[str]) -> float:
    """Return the seconds from the first POST of a batch for each of these files until all outputs are read."""
    began = time.monotonic()
    waiting = {server.create(file, endpoint=CHAT, completion_window="24h")["id"] for file in files}
    while waiting:
        for batch in polled(server, waiting):
            if batch["id"] in waiting and batch["status"] in TERMINAL:
                assert batch["status"] == "completed", batch
                assert server.content(batch["output_file_id"]).count(b"\n") == batch["request_counts"]["total"]
                waiting.remove(batch["id"])
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


def polled(server: ApiClient, waiting: set[str]) -> list[dict[str, Any]]:
    """Return batches by one request: that one, or the newest."""
    if len(waiting) == 1:
        return [server.batch(next(iter(waiting)))]
    return list(islice(server.batches(limit="20"), 20))


def in_turn(server: ApiClient, folder: Path, number: int) -> dict[str, Any]:
    """Run batches of 8, one after the other."""
    files = [uploaded(server, folder, requests(8)) for _ in range(number)]
    meter = CpuMeter.of(folder)
    seconds = [seconds_to_files(server, [file]) for file in files]
    cpu = {name: value / number for name, value in meter.by_part().items()}
    return {"median": statistics.median(seconds), "p90": sorted(seconds)[int(number * 0.9)], "cpu": cpu}


def split(server: ApiClient, folder: Path, rounds: int) -> dict[str, Any]:
    """Run 1,000 requests as one batch and as twenty, alternately."""
    ways: dict[str, Callable[[], list[str]]] = {
        "one": lambda: [uploaded(server, folder, requests(1000))],
        "twenty": lambda: [uploaded(server, folder, requests(50)) for _ in range(20)],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, files in ways.items():
            seconds[name].append(seconds_to_files(server, files()))
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure(engine: str, batches: int, rounds: int) -> dict[str, Any]:
    """Measure on a stack of its own: `eight`, `split`, and for engine vllm `thousand`: seconds of three in turn."""
    report: dict[str, Any] = {"engine": engine}
    with stack(MODELS[engine], {"BATCHYARD_ALLOW_SIMULATED": "1"}) as (server, data):
        seconds_to_files(server, [uploaded(server, data, requests(8))])  # starts the engine
        if engine == "vllm":
            report["thousand"] = [seconds_to_files(server, [uploaded(server, data, requests(1000))]) for _ in range(3)]
        report["eight"] = in_turn(server, data, batches)
        report["split"] = split(server, data, rounds)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=30, help="batches of 8")
    parser.add_argument("--rounds", type=int, default=3, help="of 1,000 requests in one batch and in twenty")
    parser.add_argument("--engine", choices=MODELS, default="vllm")
    options = parser.parse_args()
    report = {"machine": machine("ray", "celery"), **measure(options.engine, options.batches, options.rounds)}
    eight, halves = report["eight"], report["split"]
    rows = [
        *(
            (f"1,000 requests, batch {number} after one of 8", f"{seconds:.2f} s")
            for number, seconds in enumerate(report.get("thousand", ()), 1)
        ),
        ("8 requests, from POST to the file read, median", f"{eight['median'] * 1000:.0f} ms"),
        ("8 requests, p90", f"{eight['p90'] * 1000:.0f} ms"),
        *(
            (f"8 requests, CPU of {name}", f"{seconds * 1000:.1f} ms")
            for name, seconds in sorted(eight["cpu"].items(), key=lambda entry: -entry[1])
            if seconds >= 0.0005
        ),
        ("8 requests, CPU of all", f"{sum(eight['cpu'].values()) * 1000:.0f} ms"),
        ("1,000 requests in one batch", f"{halves['one']:.2f} s"),
        ("1,000 requests in twenty batches", f"{halves['twenty']:.2f} s"),
        ("twenty to one", f"{halves['twenty'] / halves['one']:.2f}"),
    ]
    write(f"small-batches-{options.engine}", report, table(("", options.engine), rows))


if __name__ == "__main__":
    main()
