"""Does a receiver that was down get every event once it is up, and how late?

Starts a stack of its own with a webhook whose receiver refuses connections, makes small batches (engine `echo`,
simulated: what is measured is the delivery of events), keeps the receiver's port closed for a while after the last of
them has ended, opens it, and records what arrives, when, and whether the `openai` package verifies it. Writes
`benchmarks/results/webhooks.json` (every request) and `webhooks.md` (the table).

    python benchmarks/webhooks.py [--batches 20] [--down 300]
"""

from __future__ import annotations

import argparse
import socket
import statistics
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import harness
import openai

from batchyard.client.api import ApiClient
from batchyard.statuses import TERMINAL

SETTINGS = {"BATCHYARD_ALLOW_SIMULATED": "1", "BATCHYARD_WEBHOOKS_ALLOW_PRIVATE": "1"}
MODELS = '[models.echo]\nengine = "echo"\n'
ENDPOINT = "/v1/chat/completions"
QUIET_SECONDS = 30  # after the last event: duplicates would arrive by then
GIVE_UP_SECONDS = 1200


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def end_batches(server: ApiClient, folder: Path, number: int) -> dict[str, int]:
    """Run batches of one request to their end. Return the times of their ends, in Unix seconds, by id."""
    waiting = [harness.submit(server, folder, harness.questions(1, "echo"))["id"] for _ in range(number)]
    ended: dict[str, int] = {}
    while len(ended) < number:
        time.sleep(0.5)
        for batch in (server.batch(batch_id) for batch_id in waiting if batch_id not in ended):
            if batch["status"] in TERMINAL:
                ended[batch["id"]] = batch[f"{batch['status']}_at"]
    return ended


class Receiver:
    """A receiver that records each request: batch, event id, time, and whether `openai` verified it."""

    def __init__(self, port: int, secret: str) -> None:
        verify = openai.OpenAI(api_key="none", webhook_secret=secret).webhooks.unwrap
        self.arrived: list[dict[str, Any]] = []
        arrived = self.arrived

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                entry: dict[str, Any] = {"id": self.headers["webhook-id"], "at": time.time(), "verified": True}
                try:
                    entry["batch"] = verify(body, dict(self.headers.items())).data.id
                except (openai.InvalidWebhookSignatureError, ValueError) as error:
                    entry |= {"verified": False, "error": str(error)}
                arrived.append(entry)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def measure(server: ApiClient, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    port = closed_port()
    webhook = server.call(
        "POST",
        "/webhook_endpoints",
        {"url": f"http://127.0.0.1:{port}/", "event_types": ["batch.completed"], "name": "benchmark"},
    )
    deliveries = f"/webhook_endpoints/{webhook['id']}/deliveries"
    ended = end_batches(server, folder, arguments.batches)
    time.sleep(max(0.0, max(ended.values()) + arguments.down - time.time()))
    attempts = [delivery["attempts"] for delivery in server.call("GET", deliveries, limit=100)["data"]]
    receiver, opened = Receiver(port, webhook["signing_secret"]), time.time()
    while {entry.get("batch") for entry in receiver.arrived} != ended.keys():
        if time.time() > opened + GIVE_UP_SECONDS:
            raise SystemExit(f"{len(receiver.arrived)} of {len(ended)} arrived within {GIVE_UP_SECONDS} s")
        time.sleep(0.2)
    time.sleep(QUIET_SECONDS)
    receiver.server.shutdown()
    listed = server.call("GET", deliveries, limit=100)["data"]
    waits = sorted(round(entry["at"] - opened, 1) for entry in receiver.arrived)
    return {
        "batches": len(ended),
        "down_seconds": {
            "longest": round(opened - min(ended.values()), 1),
            "shortest": round(opened - max(ended.values()), 1),
        },
        "attempts_while_down": {"fewest": min(attempts), "most": max(attempts)},
        "arrived": len(receiver.arrived),
        "events": len({entry["id"] for entry in receiver.arrived}),
        "most_often": max(Counter(entry["id"] for entry in receiver.arrived).values()),
        "verified": sum(entry["verified"] for entry in receiver.arrived),
        "seconds_after_opening": {"first": waits[0], "median": round(statistics.median(waits), 1), "last": waits[-1]},
        "delivered": sum(delivery["state"] == "delivered" for delivery in listed),
        "requests": [entry | {"at": round(entry["at"] - opened, 3)} for entry in receiver.arrived],
    }


def table(report: dict[str, Any]) -> str:
    measured = report["measured"]
    down, attempts, late = (measured[key] for key in ("down_seconds", "attempts_while_down", "seconds_after_opening"))
    rows = [
        ["batches that ended while the receiver was down", measured["batches"]],
        ["the receiver was down after they had ended, s", f"{down['shortest']:g} to {down['longest']:g}"],
        ["attempts of each meanwhile", f"{attempts['fewest']} to {attempts['most']}"],
        ["requests that arrived afterwards", measured["arrived"]],
        ["different events among them", measured["events"]],
        ["requests with the same event, at most", measured["most_often"]],
        [f"verified by `openai` {report['machine']['openai']}", measured["verified"]],
        [
            "arrived after the receiver was up: first, median, last, s",
            f"{late['first']:g}, {late['median']:g}, {late['last']:g}",
        ],
    ]
    return harness.table(["", ""], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=20, help="batches that end while the receiver is down")
    parser.add_argument("--down", type=float, default=300.0, help="seconds it stays down after the last has ended")
    arguments = parser.parse_args()
    machine = harness.machine("openai", "celery", "standardwebhooks")
    with harness.stack(MODELS, SETTINGS) as (server, data):
        measured = measure(server, data.parent, arguments)
    report = {"machine": machine, "settings": SETTINGS, "measured": measured}
    notes = (
        f"Batches of one request of engine `echo` (simulated), receiver and stack on one machine. Whatever came within "
        f"{QUIET_SECONDS} s after the last event is counted."
    )
    harness.write("webhooks", report, table(report), notes)


if __name__ == "__main__":
    main()
