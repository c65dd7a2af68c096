"""Waiting for batches and jobs, with live progress on standard error, and what of it is text."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import click

from batchyard.errors import UnavailableError
from batchyard.statuses import TERMINAL

Batches = list[dict[str, Any]]
T = TypeVar("T")
POLL_SECONDS = 0.5
LINE_SECONDS = 10.0
AWAY_SECONDS = 120.0
BAR_WIDTH = 24
LABEL, JOB_LABEL = "answered/failed/total", "completed/failed/stuck/total"
"""What the `counts` of batches and of jobs are of."""
PROBLEMS = 20
"""Errors of a file that are listed."""


def follow(
    fetch: Callable[[], Batches],
    draw: Callable[[Batches], str],
    brief: Callable[[dict[str, Any]], str],
    interrupted: Callable[[], str] = str,
    quiet: bool = False,
) -> Batches:
    """Fetch batches or jobs until all have ended, and return them.

    Progress goes to standard error. A terminal shows the text of `draw`, redrawn at each fetch and erased at the end;
    elsewhere a line is printed at most every LINE_SECONDS: `brief` of the only one, or how many have ended. After
    Ctrl-C the text of `interrupted` is. With `quiet` nothing is shown.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, quiet=quiet)
    printed, printed_at = "", 0.0
    try:
        with (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext() as live
        ):
            while True:
                batches = patiently(fetch)
                ended = sum(batch["status"] in TERMINAL for batch in batches)
                line = brief(batches[0]) if len(batches) == 1 else f"{ended} of {len(batches)} have ended"
                if live is not None:
                    live.update(Text.from_ansi(draw(batches), no_wrap=True, overflow="ellipsis"), refresh=True)
                elif not quiet and line != printed and time.monotonic() - printed_at >= LINE_SECONDS:
                    click.echo(line, err=True)
                    printed, printed_at = line, time.monotonic()
                if ended == len(batches):
                    return batches
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        if not quiet and (text := interrupted()):
            click.echo(text, err=True)
        raise


def patiently(fetch: Callable[[], T]) -> T:
    """Call `fetch` until the server answers, at most for AWAY_SECONDS: batches go on meanwhile."""
    deadline = time.monotonic() + AWAY_SECONDS
    while True:
        try:
            return fetch()
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _finished_share(batch: dict[str, Any]) -> float | None:
    ended = dict(batch["request_counts"])
    total = ended.pop("total")
    return sum(ended.values()) / total if total else None


def percent(batch: dict[str, Any]) -> str | None:
    share = _finished_share(batch)
    return None if share is None else f"{int(100 * share)} %"  # rounded down: 100 only if all requests have ended


def bar(batch: dict[str, Any]) -> str:
    filled = int(BAR_WIDTH * (_finished_share(batch) or 0))
    return f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] {percent(batch) or '-'}"


def counts(document: dict[str, Any]) -> str:
    numbers = document["request_counts"]
    return "/".join(str(numbers[state]) for state in ("completed", "failed", "stuck", "total") if state in numbers)


def labelled(document: dict[str, Any]) -> str:
    """Return counts with what they are of; empty while a batch's or a job's lines are not counted yet."""
    label = JOB_LABEL if "stuck" in document["request_counts"] else LABEL
    return f"  {counts(document)} {label}" if document["request_counts"]["total"] else ""


def problems(batch: dict[str, Any], limit: int = PROBLEMS) -> list[str]:
    """The first reasons why a file was refused, by line."""
    errors = ((batch["errors"] or {}).get("data") or [])[:limit]
    return [f"{_of_line(error)} ({error['code']})" for error in errors]


def warnings(batch: dict[str, Any]) -> list[str]:
    """What in a batch's requests is most likely a mistake, by line."""
    return [_of_line(warning) for warning in batch["batchyard"].get("warnings", ())]


def _of_line(entry: dict[str, Any]) -> str:
    line = entry.get("line")
    return f"line {line}: {entry['message']}" if line else str(entry["message"])
