"""Waiting for a batch, with live progress in a terminal, and how such a command ends."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from batchyard import wording
from batchyard.cli import view
from batchyard.cli.output import complain, plain
from batchyard.client import resume
from batchyard.client.api import ApiClient
from batchyard.client.progress import PROBLEMS, follow, problems, warnings
from batchyard.statuses import TERMINAL


class Unsuccessful(click.ClickException):
    """The batch ended without an answer to every request."""

    exit_code = 1


def watch(server: ApiClient, batch: dict[str, Any]) -> dict[str, Any]:
    """Show a batch's progress until it has ended, with its warnings, and return the batch as it is then."""
    warn(batch)
    interrupted = partial(resume.goes_on, server, [batch])
    ended = follow(
        lambda: [server.batch(batch["id"])], lambda batches: view.progress(batches[0]), view.brief, interrupted
    )[0]
    warn(ended, before=warnings(batch))
    return ended


def warn(batch: dict[str, Any], before: Collection[str] = ()) -> None:
    """Print a batch's warnings, but for those of `before`."""
    for text in warnings(batch):
        if text not in before:
            complain(f"warning: {text}")


def print_status(
    fetch: Callable[[], list[dict[str, Any]]],
    draw: Callable[[list[dict[str, Any]]], str],
    brief: Callable[[dict[str, Any]], str],
    check: Callable[[dict[str, Any]], None],
    *,
    only: bool,
    live: bool,
    as_json: bool,
) -> None:
    """Print batches or jobs; with `live` draw them again until all have ended, and check those that were watched."""
    documents = fetch()
    watched = {document["id"] for document in documents if only or document["status"] not in TERMINAL}
    if live:
        with interruptible("what was watched goes on"):
            documents = follow(fetch, draw, brief)
    click.echo(json.dumps(documents[0] if only else documents) if as_json else draw(documents))
    if only and not as_json:
        for problem in problems(documents[0]):
            click.echo(plain(problem), err=True)
        if (more := len((documents[0]["errors"] or {}).get("data") or []) - PROBLEMS) > 0:
            click.echo(f"and {more} more; `--json` has them", err=True)
    for document in documents:
        if live and document["id"] in watched:
            check(document)


def print_results(server: ApiClient, name: str, *, live: bool) -> dict[str, Any]:
    """Print the output lines of a batch or a job so far, and return it; if `live`, go on until it has ended."""
    printed = 0
    while True:
        document = server.work(name)  # before the lines: what has ended has all of them
        lines = server.results(name, printed)
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()
        printed += lines.count(b"\n")
        if not live or document["status"] in TERMINAL:
            return document
        time.sleep(1)


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


def conclude(failure: str | None, flaws: Mapping[str, int]) -> None:
    """End a command that waited for answers: its last line on standard error says what lacks one or has a flaw.

    Args:
        failure: what has no answer, and what tells why. An answer with a flaw is no failure, nor is a row that was not
            sent since a cell is empty.
        flaws: how many answers have each of wording.FLAWS.

    Raises Unsuccessful for a failure.
    """
    said = wording.flaws(flaws, "of the answers, ")
    if failure is not None:
        raise Unsuccessful(f"{failure}; {said}" if said else failure)
    if said:
        complain(f"warning: {said}")


def check_success(batch: dict[str, Any], counts: Mapping[str, int] | None = None) -> None:
    """Conclude if the batch has ended; it fails without an answer to every request."""
    if batch["status"] not in TERMINAL:
        return
    counts, failure = counts or batch["request_counts"] | batch["batchyard"], None
    if batch["status"] != "completed":
        failure = view.refusal(batch, "batchyard status")
    elif counts["failed"]:
        failure = (
            f"batch {batch['id']}: {counts['failed']} of {counts['total']} requests failed; "
            f"`batchyard results {batch['id']} --errors FILE` tells why"
        )
    conclude(failure, counts)
