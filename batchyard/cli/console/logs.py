"""`logs`: statuses, events and log lines of a batch or a job, in order of time."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from batchyard import durations
from batchyard.cli import completion
from batchyard.cli.console.records import changes
from batchyard.cli.options import connect, load_settings, server_options
from batchyard.cli.output import lines_of, plain, say, when
from batchyard.cli.requests import Window
from batchyard.cli.watch import interruptible
from batchyard.client import progress
from batchyard.client.address import LOOPBACK
from batchyard.client.api import ApiClient
from batchyard.local_state import local_state
from batchyard.statuses import TERMINAL

if TYPE_CHECKING:
    from batchyard.local.log_lines import LogLine, LogLines

MAX_ERRORS = 10_000
"""Lines of an error file that `logs` counts."""
MAX_LINES = 1000
POLL_SECONDS = 1.0
MARGIN_SECONDS = 5.0
"""Engines write for so long about a batch that has ended."""
_STATUSES = ("created", "in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled")
_FIELDS = {"time", "level", "logger", "message", "exception", "file", "request_id"}


@dataclass(frozen=True)
class _Work:
    """A batch or a job, with the batches and the jobs that belong to it; it is the first of the parts."""

    parts: Sequence[dict[str, Any]]

    @property
    def document(self) -> dict[str, Any]:
        return self.parts[0]

    @property
    def batches(self) -> list[dict[str, Any]]:
        return [part for part in self.parts if not part["id"].startswith("job_")]

    @property
    def ended(self) -> float:
        """When it ended, and the last lines about it are written; infinite while it goes on."""
        ends = [at for name, at in _course(self.document) if name in TERMINAL]
        return max(ends) + MARGIN_SECONDS if ends else float("inf")


@click.command()
@click.argument("name", metavar="BATCH|JOB", shell_complete=completion.batches)
@click.option("--follow", is_flag=True, help="Keep printing until the batch or job ends.")
@click.option("--since", metavar="DURATION", type=Window(), help="Maximum age of entries, such as 10m.")
@server_options
def logs(name: str, follow: bool, since: str | None, data: Path | None, as_json: bool) -> None:
    """Show the history, segments and errors of a batch or job.

    On the machine of a local stack, this includes matching log lines and the output of its engines.
    """
    from batchyard.local.log_lines import LogLines, without_starts

    if follow and as_json:
        raise click.UsageError("--follow prints lines for people, and does not go with --json")
    after = time.time() - durations.seconds(since) if since else 0.0
    server = connect(data)
    folder = load_settings(data=data).data
    reader: LogLines | None = None
    if (state := local_state(folder)) and _host_and_port(server.url) == _host_and_port(state["url"]):
        reader = LogLines(folder / "logs", Path(state["ray"]))
    else:
        click.echo(f"Lines of logs are read where {server.url} runs: `batchyard logs {name}` there.", err=True)
    if follow:
        with interruptible("what was followed goes on"):
            return _follow(server, name, reader, after)
    work = _Work(list(_parts(server, name)))
    events, records = _records(server, work, after)
    lines = _lines(reader, work, after)
    segments = [part for batch in work.batches for part in server.listed(f"/batches/{batch['id']}/segments")]
    errors = _errors(server, work)
    if as_json:
        document = {"course": [(at, status) for status, at in _course(work.document)], "events": events}
        document |= {"segments": segments, "errors": errors, "log": [line.fields for line in lines]}
        return say(document, "", True)
    shown = without_starts(lines)
    if len(shown) < len(lines):
        click.echo(f"({len(lines) - len(shown)} lines of engines that started are left out: `--json` has them)")
    if len(shown) > MAX_LINES:
        click.echo(f"({len(shown) - MAX_LINES} earlier lines of logs are left out: `--json` has them)")
    _print([*records, *_texts(shown[-MAX_LINES:])])
    columns = ("number", "model", "state", "requests", "answered", "attempts", "error")
    if segments:
        rows = [[segment[name] for name in columns] for segment in segments]
        click.echo("\n" + lines_of(["segment", *columns[1:]], rows))
    if errors:
        rows = [[error[name] for name in ("code", "count", "example", "message")] for error in errors]
        click.echo("\n" + lines_of(["error", "requests", "such as", "message"], rows))
    for problem in progress.problems(work.document):
        click.echo(plain(problem))


def _host_and_port(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return "localhost" if parts.hostname in LOOPBACK else parts.hostname, parts.port


def _parts(server: ApiClient, name: str) -> Iterator[dict[str, Any]]:
    """Fetch a batch, or a job with its stages' batches and its child jobs."""
    document = server.work(name)
    yield document
    if document["object"] == "job":
        stages = document["batchyard"]["stages"]
        yield from (server.batch(stage["batch_id"]) for stage in stages if stage["batch_id"])
        for child in document["batchyard"]["children"]:
            yield from _parts(server, child)


def _lines(reader: LogLines | None, work: _Work, after: float) -> Sequence[LogLine]:
    if reader is None:
        return []
    ids = {part["id"] for part in work.parts}
    models = {model for part in work.parts for model in part["batchyard"]["models"]}
    return reader.read(ids, models, since=max(after, work.document["created_at"]), until=work.ended)


def _print(entries: Iterable[tuple[float, str]]) -> None:
    for _, text in sorted(entries, key=lambda entry: entry[0]):
        click.echo(plain(text))


def _records(server: ApiClient, work: _Work, after: float) -> tuple[list[dict[str, Any]], list[tuple[float, str]]]:
    """Return the events, and the times and texts of these and of each change of the status."""
    events = [event for event in server.events(work.document["id"]) if event["created_at"] >= after]
    kind = "job" if work.document["id"].startswith("job_") else "batch"
    course = [(float(at), f"{when(at)} {kind}: {name}") for name, at in _course(work.document) if at >= after]
    happened = []
    for event in events:
        author = event["by"]
        by = f" by {author['name']}" if author else ""
        values = f": {given}" if author and (given := changes(event)) else ""
        happened.append((float(event["created_at"]), f"{when(event['created_at'])} event: {event['type']}{by}{values}"))
    return events, course + happened


def _texts(lines: Iterable[LogLine]) -> list[tuple[float, str]]:
    """Return times and texts of log lines: level above info, message, last line of a traceback, other fields."""
    texts = []
    for line in lines:
        fields = line.fields
        level = "" if fields.get("level", "info") == "info" else f"{fields['level']}: "
        exception = str(fields.get("exception") or "").strip().rpartition("\n")[2]
        rest = ", ".join(f"{name} {each}" for name, each in fields.items() if name not in _FIELDS and each is not None)
        text = f"{level}{fields.get('message', '')}{exception and f': {exception}'}{rest and f' ({rest})'}"
        texts.append((line.at, f"{when(int(line.at))} {fields['file'].removesuffix('.log')}: {text}"))
    return texts


def _follow(server: ApiClient, name: str, reader: LogLines | None, after: float) -> None:
    """Print the history, then once a second what is new, until the end."""
    printed: set[tuple[float, str]] = set()
    while True:
        work = _Work(list(_parts(server, name)))  # before the rest: what has ended has all of its events
        records = set(_records(server, work, after)[1]) - printed
        printed |= records
        _print([*records, *_texts(_lines(reader, work, after))])
        if work.document["status"] in TERMINAL and time.time() > work.ended:
            return
        time.sleep(POLL_SECONDS)


def _course(work: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the statuses that a batch or job has had, each with its time."""
    return [(name, at) for name in _STATUSES if (at := work[f"{name}_at"]) is not None]


def _errors(server: ApiClient, work: _Work) -> list[dict[str, Any]]:
    """Return the errors of ended batches by code, the most frequent first, each with an example."""
    from batchyard.endpoints import output_lines  # needs orjson

    counts: Counter[str] = Counter()
    examples: dict[str, dict[str, Any]] = {}
    files = [batch["error_file_id"] for batch in work.batches if batch["error_file_id"] is not None]
    lines = (line for file_id in files for line in server.lines(file_id))
    for line in itertools.islice(lines, MAX_ERRORS):
        answer = json.loads(line)
        code, message = output_lines.reason(answer)
        counts[code] += 1
        examples.setdefault(code, {"example": answer["custom_id"], "message": message or None})
    return [{"code": code, "count": count, **examples[code]} for code, count in counts.most_common()]
