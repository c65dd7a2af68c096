"""`top`: what runs, how fast, and what waits, drawn again and again."""

import itertools
import time
from pathlib import Path
from typing import Any

import click

from batchyard import durations
from batchyard.cli import job_view, view
from batchyard.cli.options import connect, server_options
from batchyard.cli.output import lines_of, say
from batchyard.client.api import ApiClient
from batchyard.client.progress import patiently

SHOWN = 15
"""Batches, and jobs, that are listed."""
MODELS = ["model", "running", "pending", "requests waiting", "rows/s", "tokens/s", "oldest", "on hold"]
ENGINES = ["engine", "model", "state", "in flight", "answered"]
_WAITS = ["first token p50/p99", "next token p50/p99"]
LIVE = ["live", "tier", "in flight", "waiting", "requests/s", "tokens/s", *_WAITS, "batch lines redone"]


@click.command()
@click.option("--once", is_flag=True, help="Print once and exit; the default if the output is not a terminal.")
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(0.2, 3600), help="Seconds per refresh."
)
@server_options
def top(once: bool, interval: float, data: Path | None, as_json: bool) -> None:
    """Watch the queue, the engines and running work until Ctrl-C.

    An admin key shows the queue of all projects.
    """
    server = connect(data)
    snapshot = _snapshot(server)
    if as_json:
        return say(snapshot, "", True)
    from rich.console import Console

    console = Console()
    if once or not console.is_terminal:
        return click.echo(draw(snapshot))
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(
                Text.from_ansi(f"{server.url}   {time.strftime('%H:%M:%S')}   Ctrl-C ends it\n\n{draw(snapshot)}")
            )
            live.refresh()
            time.sleep(interval)
            snapshot = patiently(lambda: _snapshot(server))


def _snapshot(server: ApiClient) -> dict[str, Any]:
    return {
        "queue": server.call("GET", "/queue"),
        "batches": list(itertools.islice(server.batches(status="in_progress"), SHOWN)),
        "jobs": list(itertools.islice(server.jobs(status="in_progress"), SHOWN)),
    }


def draw(snapshot: dict[str, Any]) -> str:
    """The text of a snapshot."""
    queue = snapshot["queue"]
    models = [
        (
            *(model["model"], model["running_segments"], model["pending_segments"], model["waiting_requests"]),
            *(view.rate(model["rows_per_second"]), view.rate(model["tokens_per_second"])),
            *(None if (age := model["oldest_seconds"]) is None else durations.text(age), model["held"]),
        )
        for model in queue["models"]
    ]
    engines = [(e["name"], e["model"], e["state"], e["in_flight"], e["answered"]) for e in queue["engines"] or ()]
    live = [  # requests in flight and waiting are those of all tiers
        (
            *(model["model"], tier, model["in_flight"], model["waiting"]),
            *(view.rate(traffic["requests_per_second"]), view.rate(traffic["output_tokens_per_second"])),
            *(_milliseconds(traffic[name]) for name in ("ttft_seconds", "itl_seconds")),
            model["redone_requests"],
        )
        for model in queue["live"] or ()
        for tier, traffic in model["tiers"].items()
    ]
    tables = ((MODELS, models), (ENGINES, engines), (LIVE, live))
    parts = [_counts(queue), *(lines_of(columns, rows) for columns, rows in tables if rows)]
    parts += [view.overview(snapshot["batches"])] if snapshot["batches"] else []
    parts += [job_view.overview(snapshot["jobs"])] if snapshot["jobs"] else []
    return "\n\n".join(parts)


def _counts(queue: dict[str, Any]) -> str:
    counts = {**queue["batches"], **{name: queue["sla"][name] for name in ("at_risk", "late")}}
    parts = [f"{number} {name.replace('_', ' ')}" for name, number in counts.items() if number]
    deadline = queue["next_deadline_seconds"]
    if deadline is not None:
        when = f"in {durations.text(deadline)}" if deadline > 0 else f"{durations.text(-deadline)} ago"
        parts.append(f"next deadline {when}")
    return "batches: " + (", ".join(parts) or "none runs or waits")


def _milliseconds(quantiles: dict[str, float] | None) -> str | None:
    return None if quantiles is None else f"{1000 * quantiles['p50']:.0f}/{1000 * quantiles['p99']:.0f} ms"
