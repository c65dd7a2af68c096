"""How many requests a second one worker and one engine's actor pass on, and which process is full first.

    python benchmarks/capacity.py [--rows 40000]

Engine `echo` answers at once and holds 1,024 requests, so that all CPU is control cost. CPU is that of all processes of
the stack but the client's. A process runs Python in one thread at a time, so one whose CPU is a second of each second
can do no more: what it needs for a request bounds a replica, and what all need bounds a machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from footprint import CpuMeter
from harness import CHAT, Body, chat, ended, machine, stack, submit, table, words, write
from workloads import EMBEDDINGS

from batchyard.client.api import ApiClient

MODELS = f"""[models.echo]
engine = "echo"
endpoints = ["{CHAT}", "{EMBEDDINGS}"]
max_in_flight = 1024
engine_args.slots = 1024
"""
CORES = 16
"""Of the machine for which the last column is calculated."""


def label(index: int) -> Body:
    return {"messages": [{"role": "user", "content": f"{index}: {words(12, index)}"}], "max_tokens": 1}


def conversation(index: int) -> Body:
    """500 tokens in, 200 out: echo counts words, and repeats them to `max_tokens`."""
    return chat(f"{index}: {words(498, index)}", 200)


def embedding(index: int) -> Body:
    return {"input": f"{index}: {words(12, index)}", "dimensions": 1024}


KINDS: dict[str, tuple[str, Callable[[int], Body], int]] = {
    "labels: 12 words, one token": (CHAT, label, 1),
    "chats: 500 tokens in, 200 out": (CHAT, conversation, 4),
    "embeddings of 1,024 dimensions": (EMBEDDINGS, embedding, 4),
}
"""Endpoint, request, and by what the number of rows is divided."""
WARM = 5
"""Batches of 3,000 before each measurement. The model's speed is known then, and so are the sizes of segments."""


def run(server: ApiClient, data: Path, endpoint: str, body: Callable[[int], Body], numbers: range) -> dict[str, Any]:
    """Measure one batch: rows a second from its creation to its end, CPU seconds by part."""
    meter, began = CpuMeter.of(data), time.monotonic()
    bodies = ({"model": "echo", **body(number)} for number in numbers)
    ended(server, submit(server, data.parent, bodies, endpoint=endpoint)["id"])
    return {"rows": len(numbers), "seconds": time.monotonic() - began, "cpu": meter.by_part()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine("ray", "celery"), "kinds": {}}
    with stack(MODELS, {"BATCHYARD_ALLOW_SIMULATED": "1"}) as (server, data):
        for name, (endpoint, body, part) in KINDS.items():
            rows = options.rows // part
            for number in range(WARM):
                run(server, data, endpoint, body, range(3000 * number, 3000 * (number + 1)))
            report["kinds"][name] = run(server, data, endpoint, body, range(3000 * WARM, 3000 * WARM + rows))
    lines = []
    for name, measured in report["kinds"].items():
        each = {part: seconds / measured["rows"] * 1000 for part, seconds in measured["cpu"].items()}
        each["caller"] = each.pop("ray: ray::IDLE", 0.0)  # the process that hands requests to the engine, when it rests
        parts = sorted(each.items(), key=lambda entry: -entry[1])
        busiest = parts[0]
        lines.append(
            (
                name,
                f"{measured['rows'] / measured['seconds']:,.0f}",
                f"{sum(each.values()):.3f}",
                ", ".join(f"{part} {cost:.3f}" for part, cost in parts[:4]),
                f"{busiest[0]}: {1000 / busiest[1]:,.0f}",
                f"{CORES * 1000 / sum(each.values()):,.0f}",
            )
        )
    columns = (
        "requests",
        "rows/s on this machine",
        "CPU ms a row",
        "most of it",
        "full first, rows/s of a replica",
        f"rows/s of {CORES} cores (calculated)",
    )
    write("capacity", report, table(columns, lines))


if __name__ == "__main__":
    main()
