"""Waiting for a batch, with live progress in a terminal, and how such a command ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import view
from batchyard.cli.output import complain
from batchyard.client import resume
from batchyard.client.progress import follow, warnings
from batchyard.statuses import TERMINAL

if TYPE_CHECKING:
    from batchyard.client.api import ApiClient


class Unsuccessful(click.ClickException):
    """The batch ended without an answer to every request."""

    exit_code = 1


def watch(server: ApiClient, batch: dict[str, Any]) -> dict[str, Any]:
    """Show a batch's progress until it has ended, with its warnings, and return the batch as it is then."""
    warn(batch)
    fetch = partial(server.batch, batch["id"])
    interrupted = partial(resume.goes_on, server, [batch])
    ended = follow(lambda: [fetch()], lambda batches: view.progress(batches[0]), view.brief, interrupted)[0]
    warn(ended, before=warnings(batch))
    return ended


def warn(batch: dict[str, Any], before: Collection[str] = ()) -> None:
    """Print a batch's warnings, but for those of `before`."""
    for text in warnings(batch):
        if text not in before:
            complain(f"warning: {text}")


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


def check_success(batch: dict[str, Any], counts: Mapping[str, int] | None = None) -> None:
    """Raise Unsuccessful if the batch has ended without an answer to every request.

    Args:
        counts: of the batch and those that it retries; those of the batch by default.
    """
    if batch["status"] not in TERMINAL:
        return
    counts = counts or batch["request_counts"]
    if batch["status"] != "completed":
        raise Unsuccessful(view.refusal(batch, "batchyard status"))
    if counts["failed"]:
        raise Unsuccessful(
            f"batch {batch['id']}: {counts['failed']} of {counts['total']} requests failed; "
            f"`batchyard results {batch['id']} --errors FILE` tells why"
        )
