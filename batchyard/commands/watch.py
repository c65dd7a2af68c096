"""Waiting for a batch, with a progress bar where somebody is looking."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from batchyard import durations
from batchyard.client import TERMINAL, Client
from batchyard.errors import UnavailableError

POLL_SECONDS = 0.5
LINE_SECONDS = 10.0
AWAY_SECONDS = 120.0


class Unsuccessful(click.ClickException):
    """The batch ended otherwise than with an answer to every request."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        click.echo(f"batchyard: {self.message}", err=True)


def watch(server: Client, batch_id: str) -> dict[str, Any]:
    """The batch once it has ended. Progress goes to standard error: a bar in a terminal, else a line now and then."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("waiting", total=None, speed="")
        said, last = "", 0.0
        while True:
            batch = _patiently(server, batch_id)
            counts = batch["request_counts"]
            done, total = counts["completed"] + counts["failed"], counts["total"]
            bar.update(task, description=batch["status"], completed=done, total=total or None, speed=_speed(batch))
            line = f"{batch['status']} {done}/{total} {_speed(batch)}".rstrip()
            if not console.is_terminal and line != said and time.monotonic() - last >= LINE_SECONDS:
                click.echo(line, err=True)
                said, last = line, time.monotonic()
            if batch["status"] in TERMINAL:
                return batch
            time.sleep(POLL_SECONDS)


def finished(batch: dict[str, Any]) -> None:
    """Raises Unsuccessful unless every request of the batch has an answer."""
    if batch["status"] not in TERMINAL:
        return
    counts = batch["request_counts"]
    if batch["status"] != "completed":
        problems = (batch["errors"] or {}).get("data") or []
        reason = f": {problems[0]['message']}" if problems else ""
        line = f" (line {problems[0]['line']})" if problems and problems[0].get("line") else ""
        raise Unsuccessful(f"batch {batch['id']} is {batch['status']}{reason}{line}")
    if counts["failed"]:
        raise Unsuccessful(
            f"batch {batch['id']}: {counts['failed']} of {counts['total']} requests failed; --errors FILE tells why"
        )


def _patiently(server: Client, batch_id: str) -> dict[str, Any]:
    """The batch, also if the server is away for a while: the work goes on without it."""
    deadline = time.monotonic() + AWAY_SECONDS
    while True:
        try:
            return server.batch(batch_id)
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _speed(batch: dict[str, Any]) -> str:
    ours = batch["batchyard"]
    parts = [
        text.format(ours[name])
        for name, text in (("rows_per_second", "{:.1f} rows/s"), ("tokens_per_second", "{:.0f} tokens/s"))
        if ours[name] is not None
    ]
    if ours["eta_seconds"] is not None:
        parts.append(f"done in {durations.text(ours['eta_seconds'])}")
    if ours["sla"] != "on_track":
        parts.append(ours["sla"].replace("_", " "))
    return ", ".join(parts)
