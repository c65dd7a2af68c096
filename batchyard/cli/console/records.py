"""What a server keeps, in a terminal: its pages (`open`), its files, and who did what (`audit`)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import completion
from batchyard.cli.options import connect, data_option
from batchyard.cli.output import json_option, say, table, when

if TYPE_CHECKING:
    pass


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
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="Show this many, newest first.")
@data_option
@json_option
def audit(limit: int, data: Path | None, as_json: bool) -> None:
    """Who did what and when, newest first: in the project, or with an admin key in all."""
    events = list(itertools.islice(connect(data).audit(), limit))
    if as_json:
        return say(events, "", True)
    rows = [
        [when(event["created_at"]), event["by"]["name"], event["type"], event["data"]["id"], changes(event)]
        for event in events
    ]
    table(["time", "by", "what", "id", "to"], rows)


def changes(event: dict[str, Any]) -> str:
    """Return what an event says of its object beside the id."""
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in event["data"].items() if name != "id")
