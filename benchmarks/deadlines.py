"""The error of ETAs, and the delay of small urgent batches beside a big one.

Starts a stack of its own with simulated engines (`echo`) that answer at a constant rate: what is measured is the
forecast and the dispatch, not a model. First a batch alone: its ETA at 10, 25, 50 and 75 % against the truth. Then a
queue of 20 batches of three models. Then a batch of 50,000 requests, alone and with ten batches of 10 requests and a
window of ten minutes from another project. Writes `benchmarks/results/deadlines.json` and `deadlines.md`.

    python benchmarks/deadlines.py [--rows 50000]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Any

import harness

from batchyard.client.api import ApiClient
from batchyard.statuses import TERMINAL
from store import keys
from store.database import Database

SETTINGS = {
    "BATCHYARD_ALLOW_SIMULATED": "1",
    "BATCHYARD_SEGMENT_REQUESTS": "2000",
    "BATCHYARD_MAX_SEGMENTS": "2",
}
MODELS = "".join(
    f"""
[models.{name}]
engine = "echo"
max_in_flight = {in_flight}
[models.{name}.engine_args]
latency_ms = 200
"""
    for name, in_flight in (("slow", 8), ("steady", 32), ("fast", 96))
)
URGENT = 10


def submit(server: ApiClient, folder: Path, rows: int, model: str, window: str = "24h") -> str:
    """Create a batch and return its id."""
    return str(harness.submit(server, folder, harness.questions(rows, model), window=window)["id"])


def answered_share(batch: dict[str, Any]) -> float:
    counts = batch["request_counts"]
    return (counts["completed"] + counts["failed"]) / (counts["total"] or 1)


def answered_at(data: Path, batch_id: str) -> float:
    """The time at which a batch's last result chunk was stored, in Unix seconds."""
    from sqlalchemy import func, select

    from store.records import ResultChunk

    database = Database(f"sqlite:///{data / 'batchyard.db'}")
    with database.read() as session:
        stored_at = session.scalar(select(func.max(ResultChunk.created_at)).where(ResultChunk.batch_id == batch_id))
    database.close()
    return float(stored_at or 0)


def eta(batch: dict[str, Any]) -> dict[str, float] | None:
    """A batch's ETA in Unix seconds, with its range; None if it has none."""
    ours, now = batch["batchyard"], time.time()
    if ours["eta_seconds"] is None:
        return None
    return {name: now + ours[f"eta{name}_seconds"] for name in ("", "_earliest", "_latest")}


def alone(server: ApiClient, data: Path, rows: int) -> list[dict[str, Any]]:
    """One batch: its ETA at several shares of its answers, and the error of each."""
    batch_id = submit(server, data.parent, rows, "steady")
    estimates: list[dict[str, Any]] = []
    marks = [0.1, 0.25, 0.5, 0.75]
    while (batch := server.batch(batch_id))["status"] not in TERMINAL:
        share = answered_share(batch)
        if marks and share >= marks[0]:
            estimates.append({"mark": marks.pop(0), "done": share, "at": time.time(), "eta": eta(batch)})
        time.sleep(0.1)
    truth = answered_at(data, batch_id)
    for entry in estimates:
        entry["left_seconds"] = truth - entry["at"]
        entry["error"] = abs(entry["eta"][""] - truth) / entry["left_seconds"] if entry["eta"] else None
    return estimates


def queue(server: ApiClient, data: Path, number: int) -> list[dict[str, Any]]:
    """A queue of batches of three models with known speeds: the first ETA of each batch, and its error."""
    chance = random.Random(7)
    sizes = {"slow": (100, 900), "steady": (500, 4000), "fast": (1000, 9000)}
    ids = {}
    for _ in range(number):
        model = chance.choice(list(sizes))
        rows = chance.randint(*sizes[model])
        ids[submit(server, data.parent, rows, model, f"{chance.randint(1, 24)}h")] = (model, rows)
    while any(server.batch(batch_id)["status"] == "validating" for batch_id in ids):
        time.sleep(0.1)
    time.sleep(2 * 2)  # two forecasts of the queue
    first = {batch_id: (time.time(), eta(server.batch(batch_id))) for batch_id in ids}
    for batch_id in ids:
        harness.ended(server, batch_id)
    outcomes = []
    for batch_id, (at, expected) in first.items():
        truth = answered_at(data, batch_id)
        if truth <= at:
            continue  # the batch had ended before its ETA was read
        model, rows = ids[batch_id]
        outcomes.append(
            {
                "model": model,
                "rows": rows,
                "left_seconds": truth - at,
                "eta_seconds": expected and expected[""] - at,
                "error": expected and abs(expected[""] - truth) / (truth - at),
                "in_range": expected and expected["_earliest"] <= truth <= expected["_latest"],
            }
        )
    return sorted(outcomes, key=lambda entry: entry["left_seconds"])


def urgent(server: ApiClient, other: ApiClient, data: Path, rows: int) -> dict[str, Any]:
    """A big batch alone, and again while another project sends small batches that are due soon."""
    big = harness.ended(server, submit(server, data.parent, rows, "steady"))
    seconds_alone = answered_at(data, big["id"]) - big["in_progress_at"]
    big_id = submit(server, data.parent, rows, "steady")
    while answered_share(server.batch(big_id)) < 0.1:
        time.sleep(0.2)
    durations = []
    for _ in range(URGENT):
        started = time.time()
        small = submit(other, data.parent, 10, "steady", "10m")
        harness.ended(other, small)
        durations.append(time.time() - started)
        time.sleep(seconds_alone * 0.8 / URGENT / 2)
    big = harness.ended(server, big_id)
    seconds_beside = answered_at(data, big_id) - big["in_progress_at"]
    segment = 2 * 2000 / (rows / seconds_alone)  # two run at once
    return {
        "rows": rows,
        "seconds_alone": seconds_alone,
        "seconds_beside": seconds_beside,
        "segment_seconds": segment,
        "urgent_seconds": durations,
        "lost": 1 - seconds_alone / seconds_beside,
    }


def texts(report: dict[str, Any]) -> list[str]:
    alone_rows = [
        [
            f"{entry['done']:.0%}",
            *(f"{seconds:.0f}" for seconds in (entry["left_seconds"], entry["eta"][""] - entry["at"])),
            f"{entry['eta']['_earliest'] - entry['at']:.0f} to {entry['eta']['_latest'] - entry['at']:.0f}",
            f"{entry['error']:.1%}",
        ]
        for entry in report["alone"]
    ]
    queue_rows = [
        [
            entry["model"],
            *(f"{number:,.0f}" for number in (entry["rows"], entry["left_seconds"], entry["eta_seconds"])),
            f"{entry['error']:.0%}",
            "yes" if entry["in_range"] else "no",
        ]
        for entry in report["queue"]
    ]
    errors = [entry["error"] for entry in report["queue"]]
    both = report["urgent"]
    in_range = sum(entry["in_range"] for entry in report["queue"])
    small = both["urgent_seconds"]
    return [
        f"A batch of {report['rows_alone']:,} requests on an engine with a constant rate (simulated):",
        harness.table(["done", "seconds left", "ETA s", "range s", "error"], alone_rows),
        f"{len(errors)} batches of three models, asked about at once: median error {statistics.median(errors):.0%}, "
        f"{in_range} within their range:",
        harness.table(["model", "rows", "seconds left", "ETA s", "error", "in its range"], queue_rows),
        f"A batch of {both['rows']:,} requests took {both['seconds_alone']:.1f} s alone and "
        f"{both['seconds_beside']:.1f} s beside ten batches of 10 requests of another project: "
        f"{both['lost']:.1%} of its throughput. A segment takes {both['segment_seconds']:.1f} s; the small batches "
        f"took {min(small):.1f} to {max(small):.1f} s from upload to their files.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000, help="requests of the big batch")
    parser.add_argument("--alone", type=int, default=40_000, help="requests of the batch whose ETA is followed")
    parser.add_argument("--queue", type=int, default=20, help="batches in the queue")
    arguments = parser.parse_args()
    machine = harness.machine("celery", "ray", "sqlalchemy")
    with harness.stack(MODELS, SETTINGS) as (server, data):
        database = Database(f"sqlite:///{data / 'batchyard.db'}")
        with database.write() as session:
            other = ApiClient(server.url, keys.create(session, "other").key)
        database.close()
        for model, rows in (("slow", 400), ("fast", 4000)):
            harness.ended(server, submit(server, data.parent, rows, model))
        report = {
            "machine": machine,
            "settings": SETTINGS,
            "rows_alone": arguments.alone,
            "alone": alone(server, data, arguments.alone),
            "queue": queue(server, data, arguments.queue),
            "urgent": urgent(server, other, data, arguments.rows),
        }
    harness.write("deadlines", report, *texts(report))


if __name__ == "__main__":
    main()
