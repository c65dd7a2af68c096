"""How fast the API answers when the database is full and the machine is at work.

Starts a stack of its own, runs one batch of 100 requests and copies its records until 10,000 ended batches (1,000,000
requests) are there. Then, while a long batch runs (engine `echo`, simulated: what is measured is the API beside it),
sends requests at a fixed rate, first of all kinds as clients that watch their batches do, then of each kind alone, and
takes the time from when a request was due, so that a request that waits for a free connection counts its wait. Writes
`benchmarks/results/api.json` (every time) and `api.md` (the table).

    python benchmarks/api.py [--batches 10000] [--rate 50] [--seconds 30] [--rows 400000]
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import harness
import psutil
from sqlalchemy import insert, select
from sqlalchemy.orm import DeclarativeBase

from batchyard.client.api import ApiClient
from store.database import Database
from store.records import Artifact, Batch, File, ResultChunk, Segment, new_id

SETTINGS = {
    "BATCHYARD_ALLOW_SIMULATED": "1",
    "BATCHYARD_MAX_REQUESTS": "10000000",
    "BATCHYARD_SEGMENT_REQUESTS": "20000",
}
MODELS = """
[models.echo]
engine = "echo"
[models.steady]
engine = "echo"
max_in_flight = 64
[models.steady.engine_args]
latency_ms = 50
"""
ENDPOINT = "/v1/chat/completions"
CONNECTIONS = 16
COPIES_AT_ONCE = 1000
# 95 of 100 requests are answered within this many ms, or the API is too slow.
MIXED = {"get a batch": 0.8, "list batches": 0.16, "create a batch": 0.04}
TARGETS = {"get a batch": 20, "list batches": 50, "create a batch": 50}

Request = tuple[str, str, dict[str, Any] | None]


def values(record: DeclarativeBase) -> dict[str, Any]:
    return {column.key: getattr(record, column.key) for column in record.__mapper__.column_attrs}


def fill(data: Path, batch_id: str, number: int) -> list[str]:
    """Copy an ended batch with all of its records `number` times, and return the copies' ids."""
    database = Database(f"sqlite:///{data / 'batchyard.db'}")
    with database.read() as session:
        batch = values(session.get_one(Batch, batch_id))
        artifacts = [values(row) for row in session.scalars(select(Artifact).where(Artifact.batch_id == batch_id))]
        segments = [values(row) for row in session.scalars(select(Segment).where(Segment.batch_id == batch_id))]
        chunks = [values(row) for row in session.scalars(select(ResultChunk).where(ResultChunk.batch_id == batch_id))]
        names = [batch["input_file_id"], *(artifact["file_id"] for artifact in artifacts)]
        files = [values(row) for row in session.scalars(select(File).where(File.id.in_(names)))]
        first = max(segment["id"] for segment in segments) + 1
    ids = [new_id("batch_") for _ in range(number)]
    for start in range(0, number, COPIES_AT_ONCE):
        rows: dict[type[DeclarativeBase], list[dict[str, Any]]] = {
            record: [] for record in (File, Batch, Segment, ResultChunk, Artifact)
        }
        for position, copy in enumerate(ids[start : start + COPIES_AT_ONCE], start):
            file_ids = {file["id"]: new_id("file-") for file in files}
            references = {
                name: file_ids.get(batch[name]) for name in ("input_file_id", "output_file_id", "error_file_id")
            }
            numbers = {
                segment["id"]: first + position * len(segments) + index for index, segment in enumerate(segments)
            }
            rows[File] += [file | {"id": file_ids[file["id"]]} for file in files]
            rows[Batch].append(batch | references | {"id": copy})
            rows[Segment] += [segment | {"id": numbers[segment["id"]], "batch_id": copy} for segment in segments]
            for chunk in chunks:
                owner = {"batch_id": copy, "segment_id": numbers[chunk["segment_id"]]}
                rows[ResultChunk].append({key: value for key, value in chunk.items() if key != "id"} | owner)
            rows[Artifact] += [
                artifact | {"batch_id": copy, "file_id": file_ids[artifact["file_id"]]} for artifact in artifacts
            ]
        with database.write() as session:
            for record, new in rows.items():
                session.execute(insert(record), new)
    database.close()
    return ids


class Load:
    """Sends requests at a fixed rate over connections that are kept open."""

    def __init__(self, url: str, key: str, rate: float, seconds: float) -> None:
        self._address = urlsplit(url).netloc
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._rate = rate
        self._seconds = seconds

    def run(self, make: Callable[[], Request], share: float) -> list[float]:
        """Send requests at `share` of the rate, and return the milliseconds from each one's due time to its answer.

        Raises:
            SystemExit: a request is refused.
        """
        rate = self._rate * share
        requests = [make() for _ in range(int(rate * self._seconds))]
        queue = iter(enumerate(requests))
        lock = threading.Lock()
        started = time.monotonic() + 0.2

        def send() -> Iterator[float]:
            connection = http.client.HTTPConnection(self._address)
            while True:
                with lock:
                    position, (method, path, body) = next(queue, (0, ("", "", None)))
                if not method:
                    connection.close()
                    return
                due = started + position / rate
                time.sleep(max(0.0, due - time.monotonic()))
                connection.request(method, path, json.dumps(body) if body else None, self._headers)
                response = connection.getresponse()
                answer = response.read()
                if response.status != 200:
                    raise SystemExit(f"{method} {path}: {response.status} {answer[:500]!r}")
                yield 1000 * (time.monotonic() - due)

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            sent = [pool.submit(lambda: list(send())) for _ in range(CONNECTIONS)]
        return [round(duration, 2) for duration in itertools.chain.from_iterable(future.result() for future in sent)]


def kinds(ids: list[str], file_id: str) -> dict[str, Callable[[], Request]]:
    """Return a function per kind of request that makes one. Half of the lists start at the newest batch."""
    chance = random.Random(0)
    new_batch = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}

    def list_() -> Request:
        after = f"&after={chance.choice(ids)}" if chance.random() < 0.5 else ""
        return "GET", f"/v1/batches?limit=20{after}", None

    return {
        "get a batch": lambda: ("GET", f"/v1/batches/{chance.choice(ids)}", None),
        "list batches": list_,
        "create a batch": lambda: ("POST", "/v1/batches", new_batch),
    }


def measure(server: ApiClient, data: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    folder = data.parent
    sample = harness.submit(server, folder, harness.questions(100, "echo"))
    sample = harness.ended(server, sample["id"])
    ids = fill(data, sample["id"], arguments.batches - 1)
    long = harness.submit(server, folder, harness.questions(arguments.rows, "steady"))
    while server.batch(long["id"])["request_counts"]["completed"] == 0:
        time.sleep(0.5)
    load = Load(server.url, (data / "admin.key").read_text().strip(), arguments.rate, arguments.seconds)
    measured = []
    make = kinds(ids, sample["input_file_id"])
    for phase in [MIXED, *({kind: 1.0} for kind in make)]:
        before, started = psutil.cpu_times(), time.monotonic()
        answered = server.batch(long["id"])["request_counts"]["completed"]
        with ThreadPoolExecutor(len(phase)) as pool:
            sent = {kind: pool.submit(load.run, make[kind], share) for kind, share in phase.items()}
        seconds, after = time.monotonic() - started, psutil.cpu_times()
        batch = server.batch(long["id"])
        if batch["status"] != "in_progress":
            raise SystemExit(f"the long batch is {batch['status']}; give it more --rows")
        busy = round((sum(after) - after.idle - sum(before) + before.idle) / seconds, 2)
        for kind, future in sent.items():
            times = future.result()
            percentiles = statistics.quantiles(times, n=100)
            measured.append(
                {
                    "kind": kind,
                    "a_second": arguments.rate * phase[kind],
                    "requests": len(times),
                    "p50_ms": round(percentiles[49], 1),
                    "p95_ms": round(percentiles[94], 1),
                    "p99_ms": round(percentiles[98], 1),
                    "target_p95_ms": TARGETS[kind],
                    "rows_per_second_beside": round((batch["request_counts"]["completed"] - answered) / seconds),
                    "busy_cores": busy,
                    "times_ms": times,
                }
            )
    server.control(long["id"], "cancel")
    return measured


def table(report: dict[str, Any]) -> str:
    head = "| requests | a second | number | p50 ms | p95 ms | p99 ms | target p95 ms | rows/s beside | busy cores |"
    rows = [
        f"| {entry['kind']} | {entry['a_second']:g} | {entry['requests']:,} "
        f"| {entry['p50_ms']} | {entry['p95_ms']} | {entry['p99_ms']} "
        f"| {entry['target_p95_ms']} | {entry['rows_per_second_beside']:,} | {entry['busy_cores']:.2f} |"
        for entry in report["measured"]
    ]
    notes = (
        f"The first three rows are one run, the others a run each. "
        f"With {report['batches']:,} ended batches of 100 requests in the database (SQLite), while a batch of engine "
        f"`echo` (simulated) runs; the client on the same machine. Times are from when a request was due."
    )
    return "\n".join([head, "|---" * 9 + "|", *rows, "", notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=10_000, help="ended batches in the database")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each kind of request is sent")
    parser.add_argument("--rows", type=int, default=400_000, help="requests of the batch that runs meanwhile")
    arguments = parser.parse_args()
    machine = harness.machine("flask", "gunicorn", "sqlalchemy", "celery", "ray")
    with harness.stack(MODELS, SETTINGS) as (server, data):
        measured = measure(server, data, arguments)
    report = {
        "machine": machine,
        "settings": SETTINGS,
        "batches": arguments.batches,
        "rate": arguments.rate,
        "measured": measured,
    }
    harness.write("api", report, table(report))


if __name__ == "__main__":
    main()
