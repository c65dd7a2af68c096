"""Waiting for batches, with a live picture where somebody is looking."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from batchyard.cli import view
from batchyard.cli.client import Client
from batchyard.cli.output import complain
from batchyard.errors import UnavailableError
from batchyard.statuses import TERMINAL

Batches = list[dict[str, Any]]
POLL_SECONDS = 0.5
LINE_SECONDS = 10.0
AWAY_SECONDS = 120.0


class Unsuccessful(click.ClickException):
    """The batch ended otherwise than with an answer to every request."""

    exit_code = 1


def watch(server: Client, batch_id: str) -> dict[str, Any]:
    """The batch once it has ended, with its progress meanwhile."""
    return follow(lambda: [server.batch(batch_id)], lambda found: view.progress(found[0]))[0]


def follow(look: Callable[[], Batches], draw: Callable[[Batches], str]) -> Batches:
    """What `look` finds once all of it has ended.

    Progress goes to standard error: what `draw` makes of it, drawn again and again in a terminal and gone at the end;
    elsewhere a line now and then.
    """
    console = Console(stderr=True)
    said, last = "", 0.0
    with Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext() as live:
        while True:
            found = _patiently(look)
            line = view.brief(found[0]) if len(found) == 1 else f"{_ended(found)} of {len(found)} batches have ended"
            if live is not None:
                live.update(Text(draw(found), no_wrap=True, overflow="ellipsis"), refresh=True)
            elif line != said and time.monotonic() - last >= LINE_SECONDS:
                click.echo(line, err=True)
                said, last = line, time.monotonic()
            if _ended(found) == len(found):
                return found
            time.sleep(POLL_SECONDS)


@contextmanager
def interruptible(remedy: str) -> Iterator[None]:
    """Says on Ctrl-C what goes on and how to take it up: at once, for ending a stack takes a while."""

    def interrupt(*_: Any) -> None:
        signal.signal(signal.SIGINT, before)
        complain(f"interrupted: {remedy}")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def finished(batch: dict[str, Any]) -> None:
    """Raises Unsuccessful unless every request of the batch has an answer."""
    if batch["status"] not in TERMINAL:
        return
    counts = batch["request_counts"]
    if batch["status"] != "completed":
        reasons = view.problems(batch, 1)
        raise Unsuccessful(": ".join([f"batch {batch['id']} is {batch['status']}", *reasons]))
    if counts["failed"]:
        raise Unsuccessful(
            f"batch {batch['id']}: {counts['failed']} of {counts['total']} requests failed; "
            f"`batchyard results {batch['id']} --errors FILE` tells why"
        )


def _ended(found: Batches) -> int:
    return sum(batch["status"] in TERMINAL for batch in found)


def _patiently(look: Callable[[], Batches]) -> Batches:
    """What there is to see, also if the server is away for a while: the work goes on without it."""
    deadline = time.monotonic() + AWAY_SECONDS
    while True:
        try:
            return look()
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
