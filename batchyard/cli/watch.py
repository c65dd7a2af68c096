"""Waiting for a batch or a job, with live progress in a terminal, and how such a command ends."""

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import click

from batchyard import wording
from batchyard.cli import job_view, view
from batchyard.cli.output import complain, plain, say
from batchyard.client import resume
from batchyard.client.api import ApiClient
from batchyard.client.progress import PROBLEMS, follow, problems, warnings
from batchyard.statuses import TERMINAL


class Unsuccessful(click.ClickException):
    """The batch ended without an answer to every request."""

    exit_code = 1


def watch(server: ApiClient, document: dict[str, Any]) -> dict[str, Any]:
    """Show progress, and a batch's warnings, until it ends. Return it."""
    name, interrupted = document["id"], partial(resume.goes_on, server, [document])
    if document["object"] == "job":
        jobs = follow(lambda: [server.job(name)], lambda jobs: job_view.progress(jobs[0]), job_view.brief, interrupted)
        return jobs[0]
    warn(document)
    ended = follow(lambda: [server.batch(name)], lambda batches: view.progress(batches[0]), view.brief, interrupted)[0]
    warn(ended, before=warnings(document))
    return ended


def see_through(server: ApiClient, document: dict[str, Any], as_json: bool, *, summary: bool = False) -> None:
    """Watch a batch or a job to its end, and conclude.

    Print its id, or a job's `summary`.
    """
    status = "job status" if document["object"] == "job" else "status"
    with interruptible(f"the {document['object']} goes on; `batchyard {status} {document['id']} --watch` takes it up"):
        document = watch(server, document)
    say(document, job_view.summary(document) if summary else document["id"], as_json)
    check_success(document)


def warn(batch: dict[str, Any], before: Collection[str] = ()) -> None:
    """Print a batch's warnings, but for those of `before`."""
    for text in warnings(batch):
        if text not in before:
            complain(f"warning: {text}")


def print_status(
    server: ApiClient, kind: Literal["batch", "job"], name: str | None, limit: int, *, live: bool, as_json: bool
) -> None:
    """Print a batch or a job, or the newest ones without `name`.

    With `live`, draw them again until all have ended, and check those that were watched.
    """
    one, newest = (server.job, server.jobs) if kind == "job" else (server.batch, server.batches)
    brief, overview = (job_view.brief, job_view.overview) if kind == "job" else (view.brief, view.overview)

    def fetch() -> list[dict[str, Any]]:
        return [one(name)] if name else list(itertools.islice(newest(), limit))

    def draw(documents: list[dict[str, Any]]) -> str:
        if not name:
            return overview(documents)
        if kind == "batch":
            return view.facts(documents[0])
        children = list(server.jobs(parent_id=name)) if documents[0]["batchyard"]["children"] else []
        return "\n\n".join(filter(None, (job_view.facts(documents[0]), job_view.children(documents[0], children))))

    documents = fetch()
    watched = {document["id"] for document in documents if name or document["status"] not in TERMINAL}
    if live:
        with interruptible("what was watched goes on"):
            documents = follow(fetch, draw, brief)
    click.echo(json.dumps(documents[0] if name else documents) if as_json else draw(documents))
    if name and not as_json:
        for problem in problems(documents[0]):
            click.echo(plain(problem), err=True)
        if (more := len((documents[0]["errors"] or {}).get("data") or []) - PROBLEMS) > 0:
            click.echo(f"and {more} more; `--json` has them", err=True)
    for document in documents:
        if live and document["id"] in watched:
            check_success(document)


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


def check_success(document: dict[str, Any], counts: Mapping[str, int] | None = None) -> None:
    """Conclude if a batch or a job has ended.

    A batch fails without an answer to every request, a job with uncompleted items or without a report.
    """
    if document["status"] not in TERMINAL:
        return
    counts = counts or document["request_counts"] | document["batchyard"]
    name, is_job, failure = document["id"], document["object"] == "job", None
    if document["status"] != "completed":
        failure = view.refusal(document, f"batchyard {'job ' if is_job else ''}status")
    elif is_job:
        failure = _failure_of_job(document)
    elif counts["failed"]:
        failure = (
            f"batch {name}: {counts['failed']} of {counts['total']} requests failed; "
            f"`batchyard results {name} --errors FILE` tells why"
        )
    conclude(failure, counts)


def _failure_of_job(job: dict[str, Any]) -> str | None:
    name, counts, kind = job["id"], job["request_counts"], job_view.kind_of(job)
    report = job["batchyard"]["report"] or {}
    if report.get("status") == "failed":
        return f"job {name}: its artifacts could not be made: {report.get('error')}"
    if kind.has_verdict and (job["batchyard"]["metrics"] or {}).get("passed") is False:
        return f"job {name}: not all of `pass` holds; its artifact comparison.md says what does not"
    if kind.may_fail_in_part and counts["completed"]:
        return None
    for state, words in (("failed", "failed"), ("stuck", "are stuck")):
        if counts[state]:
            tells = f"`batchyard job items {name} --state {state}` tells why"
            return f"job {name}: {counts[state]} of {counts['total']} items {words}; {tells}"
    return None
