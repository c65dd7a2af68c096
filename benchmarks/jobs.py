"""Jobs against barriers between stages, and against one batch of the same requests.

Engine `echo` decodes as a simulator: 128 requests at once, MS_PER_TOKEN a token, lengths lognormal. Each item of recipe
`chain` (benchmarks/job_recipes) makes one request in each of three stages, one after the other. `streaming` is a job as
it is; `barriers` begins a stage when the one before has ended; `flat` is one batch of the same requests, which is as
fast as it gets. Everything is simulated but the stack. Of a streaming job it also measures the hop from an answer to
the item's next request, by the engine's own call log, and the error of the ETA. Writes `benchmarks/results/jobs.json`
and `jobs.md`; with another `--cv` `jobs-cv-….md`.

With `--turns 8` the recipe is `refine`: a gate fails the answers of each item until it has had 1 to 8 turns, drawn
uniformly, each with a length of its own. Then `barriers` begins a turn of all items when all have had the one before.
Writes `refine.json` and `refine.md`.

With `--beside 50000` it measures instead how long ten urgent batches of another project take beside a job of so many
items, and beside one flat batch of the same requests, and writes `urgent.json` and `urgent.md`.

    python benchmarks/jobs.py [--items 300 1000] [--rounds 2] [--cv 1.5] [--turns 8]
    python benchmarks/jobs.py --beside 50000
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import random
import re
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import harness
import pyarrow.parquet as pq
from decoding import bound
from job_recipes import turns

from batchyard.client.api import ApiClient
from batchyard.statuses import TERMINAL
from store import keys
from store.database import Database

SLOTS = 128
MS_PER_TOKEN = 30
MEAN_TOKENS = 100
CV = 1.5
DEPTH = 3
URGENT = 10
WARM_SECONDS = 20
"""After so long the large work has the engine to itself, and every stage of a job has requests."""
QUARTERS = (0.25, 0.5, 0.75)
LEAST_TOKENS = 5
"""Of a turn of recipe `refine`: the words that stand in each."""
NAME = re.compile(r"\bitem-\d+")
CHAIN: dict[str, Any] = {"recipe": "chain", "options": {"model": "sim", "depth": DEPTH}}
REFINE: dict[str, Any] = {
    "recipe": "refine",
    "options": {
        "tiers": ["sim"],
        "gates": ["turns"],
        "prompts": {"retry": "{feedback}"},
        "policy": {"budget": 100, "repeat": 100, "friction": 100},  # the gate alone ends an item
    },
}
RECIPES = Path(__file__).parent / "job_recipes"


def models(call_log: str) -> str:
    """Return models.toml of the simulator."""
    arguments = f'{{ms_per_token = {MS_PER_TOKEN}, slots = {SLOTS}, call_log = "{call_log}"}}'
    return f'[models.sim]\nengine = "echo"\nengine_args = {arguments}\n'


def rows(items: int, cv: float = CV, most_turns: int = 0) -> list[dict[str, Any]]:
    """Return items with the tokens of each stage, or of 1 to `most_turns` turns. `cv`: of all these lengths."""
    sigma = math.sqrt(math.log(1 + cv**2))
    draws = random.Random(items)
    mean = math.log(MEAN_TOKENS) - sigma**2 / 2

    def row(number: int) -> dict[str, Any]:
        depth = draws.randint(1, most_turns) if most_turns else DEPTH
        least = LEAST_TOKENS if most_turns else 1
        lengths = [max(least, min(2000, round(draws.lognormvariate(mean, sigma)))) for _ in range(depth)]
        prompt = turns.message(f"item-{number}", 1, lengths[0]) if most_turns else f"item {number}"
        return {"prompt": prompt, "lengths": lengths}

    return [row(number) for number in range(items)]


def bodies(items: list[dict[str, Any]]) -> Iterator[harness.Body]:
    """Yield the requests of all stages of these items."""
    for item in items:
        for stage, tokens in enumerate(item["lengths"]):
            yield {"model": "sim", **harness.chat(f"{item['prompt']} {stage}", tokens)}


def flat(server: ApiClient, folder: Path, items: list[dict[str, Any]]) -> float:
    """Return the seconds of one batch of all requests of these items."""
    started = time.monotonic()
    harness.ended(server, str(harness.submit(server, folder, bodies(items))["id"]))
    return time.monotonic() - started


class Calls(threading.Thread):
    """Reads an engine's call log as it grows: when each item called, by its custom_id."""

    def __init__(self, log: Path) -> None:
        super().__init__(daemon=True)
        self.times: defaultdict[str, list[float]] = defaultdict(list)
        self._log = log
        self._stopped = threading.Event()

    def run(self) -> None:
        with self._log.open() as log:
            log.seek(0, io.SEEK_END)
            while not self._stopped.wait(0.02):
                now = time.monotonic()
                for line in log.readlines():
                    if name := NAME.search(line):
                        self.times[name[0]].append(now)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


class JobRun(NamedTuple):
    """A job's seconds, its hops in seconds, and its ETAs: (seconds since its start, seconds that it expects)."""

    seconds: float
    hops: list[float]
    etas: list[tuple[float, float | None]]


def job(
    server: ApiClient, items: list[dict[str, Any]], log: Path, program: dict[str, Any], *, streaming: bool
) -> JobRun:
    """Run a job of this recipe and options over these items. Raises SystemExit if it does not complete."""
    calls = Calls(log)
    calls.start()
    started = time.monotonic()
    body = {**program, "options": {**program["options"], "streaming": streaming}}
    created = server.create_job(**body, input={"items": items}, seed=time.time_ns() % 2**31)
    etas = []
    while (current := server.job(created["id"]))["status"] not in TERMINAL:
        etas.append((time.monotonic() - started, current["batchyard"]["eta_seconds"]))
        time.sleep(max(0.1, (time.monotonic() - started) / 100))
    seconds = time.monotonic() - started
    calls.stop()
    if current["status"] != "completed" or current["request_counts"]["completed"] != len(items):
        raise SystemExit(f"the job ended as {current['status']}: {json.dumps(current['request_counts'])}")
    return JobRun(seconds, hops(server, current, calls.times), etas)


def hops(server: ApiClient, job: dict[str, Any], calls: dict[str, list[float]]) -> list[float]:
    """Return the seconds from each answer's end in the engine to the same item's next request there."""
    journal = next(one for one in job["batchyard"]["artifacts"] if one["name"] == "journal.parquet")
    rows = pq.read_table(io.BytesIO(server.content(journal["file_id"]))).to_pylist()
    spent: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["kind"] == "request":
            spent[row["custom_id"]].append(row["seconds"])
    return [
        after - before - seconds
        for custom_id, times in calls.items()
        for (before, after), seconds in zip(itertools.pairwise(times), spent[custom_id], strict=False)
    ]


def beside(items: int) -> None:
    """Measure urgent batches beside a flat batch and beside a job of the same requests; write the figures."""
    machine = harness.machine()
    settings = {
        "BATCHYARD_ALLOW_SIMULATED": "true",
        "BATCHYARD_RECIPES": str(RECIPES),
        "BATCHYARD_MAX_REQUESTS": str(items * DEPTH),
    }
    seconds: dict[str, list[float]] = {}
    with tempfile.NamedTemporaryFile(prefix="by-calls-") as log, harness.stack(models(log.name), settings) as stack:
        server, folder = stack
        database = Database(f"sqlite:///{folder / 'batchyard.db'}")
        with database.write() as session:
            other = ApiClient(server.url, keys.create(session, "other").key)
        database.close()
        flat(server, folder, rows(300))  # its engine, its worker's first run, and its speed
        for way in ("flat batch", "job"):
            large = _large(server, folder, rows(items), as_job=way == "job")
            look = server.job if way == "job" else server.batch
            while look(large)["status"] == "validating":
                time.sleep(0.5)
            time.sleep(WARM_SECONDS)
            seconds[way] = [_urgent(other, folder) for _ in range(URGENT)]
            if (now := look(large))["status"] != "in_progress":
                raise SystemExit(f"the {way} did not run beside all urgent batches: {now}")
            (server.cancel_job if way == "job" else server.cancel)(large)
            while look(large)["status"] not in TERMINAL:
                time.sleep(0.5)
            print(json.dumps({way: seconds[way]}), flush=True)
    table = [
        [way, *(f"{value:.1f}" for value in (min(durations), statistics.median(durations), max(durations)))]
        for way, durations in seconds.items()
    ]
    text = (
        f"Simulated, as above: {URGENT} batches of 10 requests and a window of ten minutes from another project, one "
        f"after the other, while a flat batch of {items * DEPTH:,} requests runs, and while a job of {items:,} items "
        f"and {DEPTH} stages makes the same requests. Seconds from upload to the files."
    )
    columns = ["beside a", "shortest, s", "median, s", "longest, s"]
    harness.write("urgent", {"machine": machine, "seconds": seconds}, harness.table(columns, table), text)


def _large(server: ApiClient, folder: Path, items: list[dict[str, Any]], *, as_job: bool) -> str:
    """Create a job over these items, or a batch of the same requests; return its id."""
    if not as_job:
        return str(harness.submit(server, folder, bodies(items))["id"])
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".jsonl") as file:
        file.writelines(json.dumps(item) + "\n" for item in items)
        file.flush()
        source = server.upload(Path(file.name), "user_data")
    created = server.create_job(**CHAIN, input_file_id=source)
    return str(created["id"])


def _urgent(server: ApiClient, folder: Path) -> float:
    """Return the seconds of a small batch that is due soon."""
    started = time.monotonic()
    requests = ({"model": "sim", **harness.chat(f"{time.time_ns()} {number}", 10)} for number in range(10))
    harness.ended(server, str(harness.submit(server, folder, requests, window="10m")["id"]))
    return time.monotonic() - started


def eta_errors(run: JobRun) -> list[float | None]:
    """Return by how much of the whole time the ETA at each quarter missed. None: there was no ETA yet."""
    errors = []
    for part in QUARTERS:
        at, expected = min(run.etas, key=lambda one: abs(one[0] - part * run.seconds))
        errors.append(None if expected is None else (at + expected - run.seconds) / run.seconds)
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cv", type=float, default=CV, help="coefficient of variation of the lengths")
    parser.add_argument("--turns", type=int, default=0, help="most turns of an item of recipe refine")
    parser.add_argument("--beside", type=int, help="items of the job beside which urgent batches run")
    options = parser.parse_args()
    if options.beside is not None:
        beside(options.beside)
        return
    machine = harness.machine()
    program = REFINE if options.turns else CHAIN
    results = []
    settings = {"BATCHYARD_ALLOW_SIMULATED": "true", "BATCHYARD_RECIPES": str(RECIPES)}
    with tempfile.NamedTemporaryFile(prefix="by-calls-") as log, harness.stack(models(log.name), settings) as stack:
        server, folder = stack
        flat(server, folder, rows(20))  # its engine and its worker's first run
        job(server, rows(20, CV, options.turns), Path(log.name), program, streaming=True)
        for number in options.items:
            items = rows(number, options.cv, options.turns)
            runs: list[JobRun] = []
            seconds: dict[str, list[float]] = {"flat": [], "barriers": []}
            for _ in range(options.rounds):
                seconds["flat"].append(flat(server, folder, items))
                runs.append(job(server, items, Path(log.name), program, streaming=True))
                barriers = job(server, items, Path(log.name), program, streaming=False)
                seconds["barriers"].append(barriers.seconds)
            shortest = bound([tokens for item in items for tokens in item["lengths"]], SLOTS)
            chained = max(shortest, *(sum(item["lengths"]) for item in items))
            results.append(
                {
                    "items": number,
                    "bound": shortest * MS_PER_TOKEN / 1000,
                    "chained": chained * MS_PER_TOKEN / 1000,
                    "streaming": [run.seconds for run in runs],
                    "hops": [statistics.quantiles(run.hops, n=20) for run in runs],
                    "eta_errors": [eta_errors(run) for run in runs],
                    **seconds,
                }
            )
            print(json.dumps(results[-1]), flush=True)
    write(machine, results, options.cv, options.turns)


def write(machine: dict[str, Any], results: list[dict[str, Any]], cv: float, most_turns: int) -> None:
    """Write the figures, and a table of their medians."""
    columns = [
        "items",
        "flat batch, s",
        "job, s",
        "job with barriers, s",
        "of flat",
        "faster than barriers",
        "bound, s",
        "bound of chains, s",
        "hop p50, s",
        "hop p95, s",
        "ETA error at 25 %",
        "at 50 %",
        "at 75 %",
    ]
    table = []
    for result in results:
        flat_s, job_s, barriers_s = (statistics.median(result[way]) for way in ("flat", "streaming", "barriers"))
        table.append(
            [
                *(f"{result['items']:,}", f"{flat_s:.1f}", f"{job_s:.1f}", f"{barriers_s:.1f}"),
                *(f"{flat_s / job_s:.2f}", f"{barriers_s / job_s:.2f}x"),
                *(f"{result['bound']:.1f}", f"{result['chained']:.1f}"),
                *(f"{statistics.median(hops[place] for hops in result['hops']):.2f}" for place in (9, 18)),
                *(_worst([errors[quarter] for errors in result["eta_errors"]]) for quarter in range(len(QUARTERS))),
            ]
        )
    work = f"recipe `refine`, 1 to {most_turns} turns of each item" if most_turns else f"{DEPTH} stages"
    text = (
        f"Simulated: the whole stack on engine `echo`, which decodes {SLOTS} requests at once and takes {MS_PER_TOKEN} "
        f"ms a token; {work}, lengths lognormal of mean {MEAN_TOKENS} and cv {cv}. Medians. No order of the "
        "requests ends before the bound, and none that asks an item's requests one after the other before the bound of "
        "chains. A hop is from the end of an answer in the engine to the same item's next request there. The error of "
        "the ETA is in parts of the whole time, the worst of the rounds."
    )
    harness.write(
        ("refine" if most_turns else "jobs") + ("" if cv == CV else f"-cv-{cv}"),
        {"machine": machine, "results": results},
        harness.table(columns, table),
        text,
    )


def _worst(errors: list[float | None]) -> str:
    known = [error for error in errors if error is not None]
    return f"{100 * max(known, key=abs):+.0f} %" if known else "none yet"


if __name__ == "__main__":
    main()
