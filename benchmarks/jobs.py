"""Jobs against barriers between stages, and against one batch of the same requests.

Engine `echo` decodes as a simulator: 128 requests at once, MS_PER_TOKEN a token, lengths lognormal. Each item of recipe
`chain` (benchmarks/recipes) makes one request in each of three stages, one after the other. `streaming` is a job as it
is; `barriers` begins a stage when the one before has ended; `flat` is one batch of the same requests, which is as fast
as it gets. Everything is simulated but the stack. Writes `benchmarks/results/jobs.json` and `jobs.md`.

    python benchmarks/jobs.py [--items 300 1000] [--rounds 2]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from pathlib import Path
from typing import Any

import harness
from decoding import bound

from batchyard.cli.client import Client

SLOTS = 128
MS_PER_TOKEN = 30
MEAN_TOKENS = 100
CV = 1.5
DEPTH = 3
MODELS = f'[models.sim]\nengine = "echo"\nengine_args = {{ms_per_token = {MS_PER_TOKEN}, slots = {SLOTS}}}\n'
RECIPES = Path(__file__).parent / "recipes"


def rows(items: int) -> list[dict[str, Any]]:
    """Return items with the tokens of each stage."""
    sigma = math.sqrt(math.log(1 + CV**2))
    draws = random.Random(items)
    mean = math.log(MEAN_TOKENS) - sigma**2 / 2

    def tokens() -> int:
        return max(1, min(2000, round(draws.lognormvariate(mean, sigma))))

    return [{"prompt": f"item {number}", "lengths": [tokens() for _ in range(DEPTH)]} for number in range(items)]


def flat(server: Client, folder: Path, items: list[dict[str, Any]]) -> float:
    """Return the seconds of one batch of all requests of these items."""
    bodies = (
        {"model": "sim", **harness.chat(f"{item['prompt']} {stage}", tokens)}
        for item in items
        for stage, tokens in enumerate(item["lengths"])
    )
    started = time.monotonic()
    harness.ended(server, str(harness.submit(server, folder, bodies)["id"]))
    return time.monotonic() - started


def job(server: Client, items: list[dict[str, Any]], *, streaming: bool) -> float:
    """Return the seconds of a job over these items. Raises SystemExit if it does not complete."""
    started = time.monotonic()
    body = {"recipe": "chain", "options": {"model": "sim", "depth": DEPTH, "streaming": streaming}}
    created = server.create_job(**body, input={"items": items}, seed=time.time_ns() % 2**31)
    while (current := server.job(created["id"]))["status"] not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(max(0.1, (time.monotonic() - started) / 100))
    if current["status"] != "completed" or current["request_counts"]["completed"] != len(items):
        raise SystemExit(f"the job ended as {current['status']}: {json.dumps(current['request_counts'])}")
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    machine = harness.machine()
    results = []
    settings = {"BATCHYARD_ALLOW_SIMULATED": "true", "BATCHYARD_RECIPES": str(RECIPES)}
    with harness.stack(MODELS, settings) as (server, folder):
        flat(server, folder, rows(20))  # its engine and its worker's first run
        job(server, rows(20), streaming=True)
        for number in options.items:
            items = rows(number)
            seconds: dict[str, list[float]] = {"flat": [], "streaming": [], "barriers": []}
            for _ in range(options.rounds):
                seconds["flat"].append(flat(server, folder, items))
                seconds["streaming"].append(job(server, items, streaming=True))
                seconds["barriers"].append(job(server, items, streaming=False))
            ideal = bound([tokens for item in items for tokens in item["lengths"]], SLOTS) * MS_PER_TOKEN / 1000
            results.append({"items": number, "bound": ideal, **seconds})
            print(json.dumps(results[-1]), flush=True)
    write(machine, results)


def write(machine: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Write the figures, and a table of their medians."""
    columns = [
        "items",
        "flat batch, s",
        "job, s",
        "job with barriers, s",
        "of flat",
        "faster than barriers",
        "bound, s",
    ]
    table = []
    for result in results:
        flat_s, job_s, barriers_s = (statistics.median(result[way]) for way in ("flat", "streaming", "barriers"))
        table.append(
            [
                *(f"{result['items']:,}", f"{flat_s:.1f}", f"{job_s:.1f}", f"{barriers_s:.1f}"),
                *(f"{flat_s / job_s:.2f}", f"{barriers_s / job_s:.2f}x", f"{result['bound']:.1f}"),
            ]
        )
    text = (
        f"Simulated: the whole stack on engine `echo`, which decodes {SLOTS} requests at once and takes {MS_PER_TOKEN} "
        f"ms a token; {DEPTH} stages, lengths lognormal of mean {MEAN_TOKENS} and cv {CV}. Medians. No order of the "
        "requests ends before the bound."
    )
    harness.write("jobs", {"machine": machine, "results": results}, harness.table(columns, table), text)


if __name__ == "__main__":
    main()
