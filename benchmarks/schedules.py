"""A schedule that fires every minute while beat is killed: is each time run, and none twice?

Starts a stack of its own with engine `echo` (simulated), creates a schedule of `* * * * *`, kills beat with -9 at
random times right before a run is due (the stack starts it again), and after the minutes lists the runs: when each was
due, how much later its batch was created, and how that ended. Writes `benchmarks/results/schedules.json` (every run)
and `schedules.md` (the table).

    python benchmarks/schedules.py [--minutes 10] [--kills 2]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import harness

from batchyard.client.api import ApiClient

SETTINGS = {"BATCHYARD_ALLOW_SIMULATED": "1"}
MODELS = '[models.echo]\nengine = "echo"\n'
ENDPOINT = "/v1/chat/completions"
MINUTE = 60
# Beat is killed at most this long before a run is due: the stack takes a second or more to start it again.
LEAD_SECONDS = 2.0


def template() -> str:
    """A batch file of ten requests, with placeholders that each run fills."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "The wagons of {{datetime}}?"}]}
    lines = [
        {"custom_id": f"{{{{date}}}}-{number}", "method": "POST", "url": ENDPOINT, "body": body} for number in range(10)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def kill_beat(data: Path) -> dict[str, Any]:
    """Kill -9 beat and wait until the stack has started it again."""
    file = data / "run" / "beat.pid"
    pid = int(file.read_text())
    killed_at = time.time()
    os.kill(pid, signal.SIGKILL)
    while int(file.read_text() or pid) == pid:
        time.sleep(0.1)
    return {"killed_at": round(killed_at, 1), "away_seconds": round(time.time() - killed_at, 1)}


def measure(server: ApiClient, data: Path, minutes: int, kills: int) -> dict[str, Any]:
    body = {
        "name": "every minute",
        "cron": "* * * * *",
        "input": {"template": template()},
        "batch": {"endpoint": ENDPOINT, "completion_window": "1h"},
        "overlap": "allow",
    }
    schedule = server.call("POST", "/schedules", body)
    first = schedule["next_run_at"]
    outages = []
    for number in sorted(random.sample(range(1, minutes), kills)):
        time.sleep(max(0.0, first + MINUTE * number - random.uniform(0, LEAD_SECONDS) - time.time()))
        outages.append(kill_beat(data))
    time.sleep(max(0.0, first + minutes * MINUTE - 5 - time.time()))
    path = f"/schedules/{schedule['id']}"
    server.call("POST", f"{path}/pause")
    runs = sorted(server.listed(f"{path}/runs"), key=lambda run: run["scheduled_at"])
    return {
        "first": first,
        "expected": [first + MINUTE * number for number in range(minutes)],
        "kills": outages,
        "runs": [run | {"batch": result(harness.ended(server, run["batch_id"]))} for run in runs],
    }


def result(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: batch[name] for name in ("status", "created_at", "completed_at", "request_counts")}


def clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")


def table(report: dict[str, Any]) -> str:
    rows = []
    for run in report["runs"]:
        due = run["scheduled_at"]
        kills = [kill for kill in report["kills"] if due - MINUTE / 2 <= kill["killed_at"] < due + MINUTE / 2]
        outages = "; ".join(f"{clock(kill['killed_at'])}, back after {kill['away_seconds']} s" for kill in kills)
        counts = run["batch"]["request_counts"]
        rows.append(
            f"| {clock(due)} | {run['state']} | {run['created_at'] - due} | {run['batch']['status']} "
            f"| {counts['completed']} of {counts['total']} | {outages} |"
        )
    times = [run["scheduled_at"] for run in report["runs"]]
    missing, twice = len(set(report["expected"]) - set(times)), len(times) - len(set(times))
    notes = (
        f"{len(times)} runs for {len(report['expected'])} minutes: {missing} missing, {twice} twice. Beat was killed "
        f"with -9 {len(report['kills'])} times, up to {LEAD_SECONDS:g} s before a time. Times are UTC; a batch is 10 "
        f"requests of engine `echo` (simulated)."
    )
    head = "| due | run | batch made after s | batch | answered | beat killed before |"
    return "\n".join([head, "|---" * 6 + "|", *rows, "", notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=10, help="how often the schedule fires")
    parser.add_argument("--kills", type=int, default=2, help="how often beat is killed meanwhile")
    arguments = parser.parse_args()
    machine = harness.machine("celery", "redis", "sqlalchemy", "cronsim")
    with harness.stack(MODELS, SETTINGS) as (server, data):
        measured = measure(server, data, arguments.minutes, arguments.kills)
    report = {"machine": machine, "settings": SETTINGS, **measured}
    harness.write("schedules", report, table(report))


if __name__ == "__main__":
    main()
