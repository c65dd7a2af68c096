"""How many requests a second one worker and one engine's actor pass on, and which process is full first.

    python benchmarks/capacity.py [--rows 20000]

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
from harness import Body, chat, ended, machine, stack, submit, table, words, write

from batchyard.client.api import ApiClient

MODELS = '[models.echo]\nengine = "echo"\nmax_in_flight = 1024\nengine_args.slots = 1024\n'
CORES = 16
"""Of the machine for which the last column is calculated."""


def label(index: int) -> Body:
    return {"messages": [{"role": "user", "content": f"{index}: {words(12, index)}"}], "max_tokens": 1}


def conversation(index: int) -> Body:
    """500 tokens in, 200 out: echo counts words, and repeats them to `max_tokens`."""
    return chat(f"{index}: {words(498, index)}", 200)


KINDS: dict[str, tuple[Callable[[int], Body], int]] = {
    "labels: 12 words, one token": (label, 1),
    "chats: 500 tokens in, 200 out": (conversation, 4),
}
"""Request, and by what the number of rows is divided."""


def run(server: ApiClient, data: Path, body: Callable[[int], Body], numbers: range) -> dict[str, Any]:
    """Measure one batch: rows a second from its creation to its end, CPU seconds by part."""
    meter, began = CpuMeter.of(data), time.monotonic()
    ended(
        server,
        submit(server, data.parent, ({"model": "echo", **body(number)} for number in numbers))["id"],
    )
    return {"rows": len(numbers), "seconds": time.monotonic() - began, "cpu": meter.by_part()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine("ray", "celery"), "kinds": {}}
    with stack(MODELS, {"BATCHYARD_ALLOW_SIMULATED": "1"}) as (server, data):
        for name, (body, part) in KINDS.items():
            run(server, data, body, range(2000))  # starts what a first run needs
            report["kinds"][name] = run(server, data, body, range(2000, 2000 + options.rows // part))
    rows = []
    for name, measured in report["kinds"].items():
        each = {part: seconds / measured["rows"] * 1000 for part, seconds in measured["cpu"].items()}
        parts = sorted(each.items(), key=lambda entry: -entry[1])
        busiest = parts[0]
        rows.append(
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
    write("capacity", report, table(columns, rows))


if __name__ == "__main__":
    main()
