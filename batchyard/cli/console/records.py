"""What a server keeps, in a terminal: its pages (`open`), its files, and what has happened to a batch (`logs`)."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import completion
from batchyard.cli.options import connect, data_option, load_settings
from batchyard.cli.output import json_option, lines_of, plain, say, table, when
from batchyard.client import progress

if TYPE_CHECKING:
    from batchyard.client.api import Client

MAX_ERRORS = 10_000
"""Lines of an error file that `logs` counts."""
MAX_LOG_LINES = 200


@click.command("open")
@click.argument("name", metavar="[BATCH|JOB]", required=False, shell_complete=completion.batches)
@data_option
@json_option
def open_(name: str | None, data: Path | None, as_json: bool) -> None:
    """Open the page of a batch or a job in the browser, and print its address; without one, the page of what runs."""
    server = connect(data)
    if name is not None:
        server.job(name) if name.startswith("job_") else server.batch(name)
    address = server.page(name)
    say({"url": address}, address, as_json)
    if not as_json:
        click.launch(address)


@click.command()
@click.argument("batch_id", metavar="[BATCH]", required=False, shell_complete=completion.batches)
@click.option("--purpose", help="Without BATCH: only files of this purpose, such as batch or batch_output.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="Without BATCH: so many.")
@data_option
@json_option
def files(batch_id: str | None, purpose: str | None, limit: int, data: Path | None, as_json: bool) -> None:
    """The project's files, newest first; with BATCH, its input and what it has produced."""
    server = connect(data)
    if batch_id is None:
        listed = list(itertools.islice(server.files(purpose), limit))
    else:
        listed = [file for file_id in _file_ids(server.batch(batch_id)) if (file := server.find_file(file_id))]
    if as_json:
        return say(listed, "", True)
    columns = ["file", "purpose", "bytes", "created", "expires", "name"]
    table(
        columns,
        [
            [f["id"], f["purpose"], f["bytes"], when(f["created_at"]), when(f["expires_at"]), f["filename"]]
            for f in listed
        ],
    )


def _file_ids(batch: dict[str, Any]) -> list[str]:
    """Return the ids of a batch's files: its input, then its artifacts."""
    return [batch["input_file_id"], *(artifact["file_id"] for artifact in batch["batchyard"]["artifacts"])]


@click.command()
@click.argument("batch_id", metavar="BATCH", shell_complete=completion.batches)
@data_option
@json_option
def logs(batch_id: str, data: Path | None, as_json: bool) -> None:
    """What has happened to a batch: its course, its segments and their attempts, its errors by code.

    On the machine of a local stack also the lines of its logs that name the batch.
    """
    server = connect(data)
    batch = server.batch(batch_id)
    events, segments = list(server.events(batch_id)), list(server.segments(batch_id))
    errors = _errors(server, batch)
    lines = list(itertools.islice(_log_lines(load_settings(data=data).data / "logs", batch_id), MAX_LOG_LINES))
    if as_json:
        document = {"course": _course(batch), "events": events, "segments": segments, "errors": errors, "log": lines}
        return say(document, "", True)
    times = [*_course(batch), *((event["created_at"], _what(event)) for event in events)]
    click.echo(lines_of(["time", "batch"], [(when(at), what) for at, what in sorted(times)]))
    columns = ("number", "model", "state", "requests", "answered", "attempts", "error")
    if segments:
        click.echo(
            "\n" + lines_of(["segment", *columns[1:]], [[segment[name] for name in columns] for segment in segments])
        )
    if errors:
        rows = [(error["code"], error["count"], error["example"], error["message"]) for error in errors]
        click.echo("\n" + lines_of(["error", "requests", "such as", "message"], rows))
    for problem in progress.problems(batch):
        click.echo(plain(problem))
    if lines:
        click.echo("\nlogs:")
    for line in lines:
        click.echo(plain(f"{line.get('time', '')} {line.get('level', '')} {line['file']}: {line.get('message', '')}"))


@click.command()
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="Show this many, newest first.")
@data_option
@json_option
def audit(limit: int, data: Path | None, as_json: bool) -> None:
    """Who did what and when, newest first: in the project, or with an admin key in all."""
    events = list(itertools.islice(connect(data).audit(), limit))
    if as_json:
        return say(events, "", True)
    rows = [
        [when(event["created_at"]), event["by"]["name"], event["type"], event["data"]["id"], _changes(event)]
        for event in events
    ]
    table(["time", "by", "what", "id", "to"], rows)


def _what(event: dict[str, Any]) -> str:
    """Return an event in words: its type, and who did it."""
    by = f" by {event['by']['name']}" if event["by"] else ""
    changes = _changes(event) if event["by"] else ""
    return f"{event['type']}{by}" + (f": {changes}" if changes else "")


def _changes(event: dict[str, Any]) -> str:
    """Return what an event says of its object beside the id."""
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in event["data"].items() if name != "id")


def _course(batch: dict[str, Any]) -> list[tuple[int, str]]:
    """Return the times at which a batch's status changed."""
    names = ("created", "in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled")
    return [(at, name) for name in names if (at := batch[f"{name}_at"]) is not None]


def _errors(server: Client, batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the errors of an ended batch by code, the most frequent first, each with an example."""
    if batch["error_file_id"] is None:
        return []
    counts: Counter[str] = Counter()
    examples: dict[str, dict[str, Any]] = {}
    for line in itertools.islice(server.lines(batch["error_file_id"]), MAX_ERRORS):
        answer = json.loads(line)
        error = answer["error"] or ((answer["response"] or {}).get("body") or {}).get("error") or {}
        code = str(error.get("code") or error.get("type"))
        counts[code] += 1
        examples.setdefault(code, {"example": answer["custom_id"], "message": error.get("message")})
    return [{"code": code, "count": count, **examples[code]} for code, count in counts.most_common()]


def _log_lines(folder: Path, batch_id: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a local stack's logs that name a batch, process by process."""
    for file in sorted(folder.glob("*.log")):
        try:
            with file.open(errors="replace") as stream:
                for line in stream:
                    if batch_id in line and line.startswith("{"):
                        yield {**json.loads(line), "file": file.name}
        except (OSError, ValueError):
            continue
