"""Many models on few CPUs: each has a small and a large batch, all at once. How long each takes, and what it says.

Engine `echo` is simulated: what is measured is how engines and runs find their places.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import defaultdict
from typing import Any

import harness

SETTINGS = {"BATCHYARD_ALLOW_SIMULATED": "1"}
SIZES = (2, 1000)
POLL_SECONDS = 1.0


def models(number: int) -> str:
    entry = '[models.m{0}]\nengine = "echo"\n[models.m{0}.engine_args]\nslots = 2\nms_per_token = 5\n'
    return "".join(entry.format(index) for index in range(number))


def measure(server: Any, folder: Any, number: int) -> dict[str, Any]:
    """Submit all batches, and watch what they say until all have ended."""
    began = time.monotonic()
    batches = {
        (index, size): harness.submit(server, folder, harness.questions(size, f"m{index}"))["id"]
        for size in SIZES
        for index in range(number)
    }
    seconds_in: dict[str, dict[str, float]] = {batch_id: defaultdict(float) for batch_id in batches.values()}
    looked_at = dict.fromkeys(seconds_in, began)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            for batch_id, states in seconds_in.items():
                state = server.batch(batch_id)["batchyard"].get("state")
                now = time.monotonic()
                if state is not None:
                    states[state["name"]] += now - looked_at[batch_id]
                looked_at[batch_id] = now

    threading.Thread(target=watch, daemon=True).start()
    ended = {key: harness.ended(server, batch_id) for key, batch_id in batches.items()}
    over.set()
    first = min(batch["created_at"] for batch in ended.values())
    return {
        "seconds": time.monotonic() - began,
        "batches": [
            {
                "model": f"m{index}",
                "requests": size,
                "completed": batch["request_counts"]["completed"],
                "seconds": batch["completed_at"] - first,
                "states": dict(seconds_in[batch["id"]]),
            }
            for (index, size), batch in ended.items()
        ],
    }


def table(measured: dict[str, Any]) -> str:
    rows = []
    for size in SIZES:
        batches = [batch for batch in measured["batches"] if batch["requests"] == size]
        seconds = sorted(batch["seconds"] for batch in batches)
        complete = sum(batch["completed"] == size for batch in batches)
        slowest = max(batches, key=lambda batch: batch["seconds"])
        longest = sorted(slowest["states"].items(), key=lambda state: -state[1])
        waits = ", ".join(f"{name} {seconds_in_it:.0f}" for name, seconds_in_it in longest)
        rows.append(
            [size, f"{complete} of {len(batches)}", seconds[0], statistics.median(seconds), seconds[-1], waits or "-"]
        )
    return harness.table(
        ["requests", "complete", "first, s", "median, s", "slowest, s", "seconds of the slowest in each state"], rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=30, help="how many there are")
    arguments = parser.parse_args()
    machine = harness.machine("ray", "celery")
    with harness.stack(models(arguments.models), SETTINGS) as (server, data):
        measured = measure(server, data, arguments.models)
    report = {"machine": machine, "settings": SETTINGS, **measured}
    note = f"{arguments.models} models, each with both batches, all sent at once; seconds from the first create."
    harness.write("many-models", report, table(measured), note)


if __name__ == "__main__":
    main()
