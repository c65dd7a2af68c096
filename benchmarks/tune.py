"""A tune against what is known: the speed of engine `echo`, the best of four cells, and failures that are planted.

`echo` decodes a token of each of its slots in `ms_per_token`, so its throughput is known: slots / ms_per_token. All
answers are simulated; what is measured is the tune. Writes `benchmarks/results/tune.json` and `tune.md`.

    python benchmarks/tune.py [--seconds 40] [--times 10]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

from batchyard.client.api import Client
from batchyard.statuses import TERMINAL

MODELS = """
[models.sim]
engine = "echo"
[models.sim.engine_args]
ms_per_token = 10
"""
TOKENS = 50
"""Of each answer."""
SLOTS, MILLISECONDS = (16, 18), (10, 11)
"""Their product are four cells. The best one is 10 % faster than the next."""
SHORT = 10
"""Seconds of a repeat where the best cell is looked for."""
PLANTED = {
    "memory": ("start_error", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    "dependency": ("start_error", "ModuleNotFoundError: No module named 'flash_attn'"),
    "cluster": ("die_on", "wagon"),
    "timeout": ("hang_on", "wagon"),
}


def source(server: Client, rows: int) -> str:
    """Upload rows that all differ, and return the file's id."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"prompt": f"wagon {number}"}) + "\n" for number in range(rows))
        file.flush()
        return server.upload(Path(file.name), "user_data")


def tune(server: Client, rows: int, seed: int, **options: Any) -> dict[str, Any]:
    """Run a tune and return its tune.json."""
    values = {"models": ["sim"], "warm_up": 4, "options": {"sampling": {"max_tokens": TOKENS}}, **options}
    job = server.create_job(recipe="tune", options=values, input_file_id=source(server, rows), seed=seed)
    while (job := server.job(job["id"]))["status"] not in TERMINAL:
        time.sleep(0.5)
    if job["status"] != "completed":
        raise SystemExit(f"the tune ended as {job['status']}: {job.get('errors')}")
    artifacts = {artifact["name"]: artifact["file_id"] for artifact in job["batchyard"]["artifacts"]}
    document: dict[str, Any] = json.loads(server.content(artifacts["tune.json"]))
    return document


def rows_for(seconds: float, slots: int, milliseconds: float) -> int:
    """Return how many rows so many slots answer in that time: whole turns of all slots."""
    return slots * max(5, round(1000 * seconds / milliseconds / TOKENS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--times", type=int, default=10)
    arguments = parser.parse_args()
    machine = harness.machine("ray")
    report: dict[str, Any] = {"machine": machine, "throughput": [], "best": [], "planted": {}}
    with harness.stack(MODELS, {"BATCHYARD_ALLOW_SIMULATED": "1", "BATCHYARD_REQUEST_TIMEOUT": "5"}) as (server, _):
        for slots in (8, 32):
            rows = rows_for(arguments.seconds, slots, 10)
            (cell,) = tune(server, rows, 1, batch=[slots])["cells"]
            theory = slots * 100
            report["throughput"].append([slots, rows, theory, cell["medians"]["tokens"], cell["tokens_range"]])
            print(json.dumps(report["throughput"]), flush=True)
        best = f"sim-{max(SLOTS)}x1+ms_per_token-{min(MILLISECONDS)}"
        for number in range(arguments.times):
            document = tune(
                server,
                rows_for(SHORT, max(SLOTS), min(MILLISECONDS)),
                number,
                batch=list(SLOTS),
                set={"engine_args.ms_per_token": list(MILLISECONDS)},
            )
            report["best"].append(document["recommendation"]["cell"] == best)
            print(json.dumps(report["best"]), flush=True)
        for category, (argument, value) in PLANTED.items():
            document = tune(server, 64, 1, set={f"engine_args.{argument}": [None, value]}, repeats=1, cell_budget="90s")
            categories = [(cell["diagnosis"] or {}).get("category") for cell in document["cells"]]
            states = [cell["state"] for cell in document["cells"]]
            report["planted"][category] = [states, categories]
            print(json.dumps(report["planted"]), flush=True)
    harness.write("tune", report, *tables(report, arguments.seconds))


def tables(report: dict[str, Any], seconds: float) -> list[str]:
    speeds = [
        [slots, f"{rows:,}", f"{theory:,}", f"{measured:,.0f} ({low:,.0f} to {high:,.0f})", f"{measured / theory:.3f}"]
        for slots, rows, theory, measured, (low, high) in report["throughput"]
    ]
    planted = [
        [category, states[1], categories[1], states[0]] for category, (states, categories) in report["planted"].items()
    ]
    return [
        harness.table(["slots", "rows", "theory, tokens/s", "measured (range of 3 repeats)", "of theory"], speeds),
        f"Repeats of about {seconds:g} s. The best of four cells, 10 % faster than the next, was recommended "
        f"{sum(report['best'])} times of {len(report['best'])}, by three repeats of {SHORT} s each.",
        harness.table(["planted", "that cell", "diagnosed as", "the other cell"], planted),
    ]


if __name__ == "__main__":
    main()
