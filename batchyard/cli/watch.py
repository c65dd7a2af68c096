"""Waiting for batches and jobs, with live progress in a terminal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click

from batchyard.cli import view
from batchyard.errors import UnavailableError
from batchyard.statuses import TERMINAL

if TYPE_CHECKING:
    from batchyard.cli.client import Client

Batches = list[dict[str, Any]]
T = TypeVar("T")
POLL_SECONDS = 0.5
LINE_SECONDS = 10.0
AWAY_SECONDS = 120.0


class Unsuccessful(click.ClickException):
    """The batch ended without an answer to every request."""

    exit_code = 1


def watch(server: Client, batch_id: str) -> dict[str, Any]:
    """Show a batch's progress until it has ended, and return the batch."""
    return follow(lambda: [server.batch(batch_id)], lambda batches: view.progress(batches[0]))[0]


def follow(
    fetch: Callable[[], Batches],
    draw: Callable[[Batches], str],
    brief: Callable[[dict[str, Any]], str] = view.brief,
    quiet: bool = False,
) -> Batches:
    """Fetch batches or jobs until all have ended, and return them.

    Progress goes to standard error. A terminal shows the text of `draw`, redrawn at each fetch and erased at the end;
    elsewhere a line is printed at most every LINE_SECONDS: `brief` of the only one, or how many have ended. With
    `quiet` nothing is shown.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, quiet=quiet)
    printed, printed_at = "", 0.0
    with Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext() as live:
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


@contextmanager
def interruptible(remedy: str) -> Iterator[None]:
    """Print `remedy` on Ctrl-C, at once: the end of a local stack takes a while."""

    def interrupt(*_: Any) -> None:
        os.write(2, message)  # a stream that is just written to takes nothing from a signal handler
        signal.signal(signal.SIGINT, before)
        raise KeyboardInterrupt

    message = f"batchyard: interrupted: {remedy}\n".encode()
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def check_success(batch: dict[str, Any]) -> None:
    """Raise Unsuccessful if the batch has ended without an answer to every request."""
    if batch["status"] not in TERMINAL:
        return
    counts = batch["request_counts"]
    if batch["status"] != "completed":
        raise Unsuccessful(view.refusal(batch, "batchyard status"))
    if counts["failed"]:
        raise Unsuccessful(
            f"batch {batch['id']}: {counts['failed']} of {counts['total']} requests failed; "
            f"`batchyard results {batch['id']} --errors FILE` tells why"
        )


def patiently(fetch: Callable[[], T]) -> T:
    """Call `fetch` until the server answers, for AWAY_SECONDS at most: batches go on while the web app is away."""
    deadline = time.monotonic() + AWAY_SECONDS
    while True:
        try:
            return fetch()
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
