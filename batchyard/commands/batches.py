"""Commands on a server's batches: submit, status, results, cancel, retry, list, models."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from batchyard import client, durations
from batchyard.client import Client
from batchyard.commands import requests
from batchyard.commands.options import connect, data_option
from batchyard.commands.output import json_option, say, table, when
from batchyard.commands.watch import finished, watch
from batchyard.errors import ConfigurationError


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@requests.endpoint_option
@click.option("--window", default="24h", show_default=True, help="Completion window: a number and s, m, h or d.")
@requests.post_process_option
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Kept with the batch; may be given 16 times.")
@click.option("--wait", is_flag=True, help="Wait for the end, with a progress bar.")
@data_option
@json_option
def submit(
    file: Path,
    endpoint: str | None,
    window: str,
    post_process: tuple[str, ...],
    metadata: tuple[str, ...],
    wait: bool,
    data: Path | None,
    as_json: bool,
) -> None:
    """Upload FILE and make a batch of it; prints the batch's id."""
    pairs = requests.pairs(metadata, "--metadata")
    steps = requests.steps(post_process)
    server = connect(data)
    batch = server.create(
        server.upload(file),
        endpoint=endpoint or requests.endpoint_of(file),
        window=window,
        metadata=pairs,
        post_process=steps,
    )
    if not wait:
        return say(batch, batch["id"], as_json)
    batch = watch(server, batch["id"])
    say(batch, batch["id"], as_json)
    finished(batch)


@click.command()
@click.argument("batch_id", metavar="[BATCH]", required=False)
@click.option("--watch", "follow", is_flag=True, help="Stay until the batch has ended.")
@data_option
@json_option
def status(batch_id: str | None, follow: bool, data: Path | None, as_json: bool) -> None:
    """How far a batch is; without BATCH, the newest."""
    server = connect(data)
    batch = server.batch(batch_id) if batch_id else _newest(server)
    if follow:
        batch = watch(server, batch["id"])
    if as_json:
        click.echo(json.dumps(batch))
    else:
        _describe(batch)
    if follow:
        finished(batch)


@click.command()
@click.argument("batch_id", metavar="BATCH")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the answers go [standard output].")
@click.option("--errors", type=click.Path(path_type=Path), help="Where the failed requests' lines go.")
@click.option("--follow", is_flag=True, help="Print lines as they are answered, until the batch has ended.")
@data_option
@json_option
def results(
    batch_id: str, output: Path | None, errors: Path | None, follow: bool, data: Path | None, as_json: bool
) -> None:
    """Fetch a batch's answers, and with --errors its failed requests."""
    server = connect(data)
    if follow:
        if output is not None or errors is not None or as_json:
            raise click.UsageError("--follow prints to standard output, and goes with no other option")
        return _follow(server, batch_id)
    batch = server.batch(batch_id)
    if batch["output_file_id"] is None and batch["error_file_id"] is None:
        raise ConfigurationError(f"batch {batch_id} is {batch['status']} and has no results; see `batchyard status`")
    if as_json and output is None:
        raise click.UsageError("--json needs -o: standard output can hold the answers or the report")
    if output is not None:
        requests.save(server, batch["output_file_id"], output)
    elif batch["output_file_id"] is not None:
        for chunk in server.chunks(batch["output_file_id"]):
            sys.stdout.buffer.write(chunk)
    if errors is not None:
        requests.save(server, batch["error_file_id"], errors)
    if as_json:
        click.echo(json.dumps(batch))
    finished(batch)


@click.command()
@click.argument("batch_id", metavar="BATCH")
@data_option
@json_option
def cancel(batch_id: str, data: Path | None, as_json: bool) -> None:
    """Cancel a batch; what is answered is kept."""
    batch = connect(data).cancel(batch_id)
    say(batch, f"{batch['id']} is {batch['status']}", as_json)


@click.command()
@click.argument("batch_id", metavar="BATCH")
@data_option
@json_option
def retry(batch_id: str, data: Path | None, as_json: bool) -> None:
    """Make a batch of what BATCH did not answer; prints the new batch's id."""
    batch = connect(data).retry(batch_id)
    say(batch, batch["id"], as_json)


@click.command("list")
@click.option("--limit", default=20, show_default=True, help="Show this many, newest first.")
@data_option
@json_option
def list_(limit: int, data: Path | None, as_json: bool) -> None:
    """The project's batches, newest first."""
    found = [batch for _, batch in zip(range(limit), connect(data).batches(), strict=False)]
    if as_json:
        return say(found, "", True)
    rows = [[b["id"], b["status"], _counts(b), b["model"], when(b["created_at"]), _eta(b), _sla(b)] for b in found]
    table(["batch", "status", "answered/failed/total", "model", "created", "eta", "sla"], rows)


@click.command()
@data_option
@json_option
def models(data: Path | None, as_json: bool) -> None:
    """The models the server serves."""
    found = connect(data).models()
    if as_json:
        return say(found, "", True)
    rows = [
        [m["id"], m["batchyard"]["engine"], ", ".join(m["batchyard"]["endpoints"]), m["batchyard"]["simulated"] or None]
        for m in found
    ]
    table(["model", "engine", "endpoints", "simulated"], rows)


def _follow(server: Client, batch_id: str) -> None:
    """Print output lines as they are answered; first what there is, then once a second what is new."""
    have = 0
    while True:
        batch = server.batch(batch_id)  # before the lines: what has ended has all of them
        lines = server.results(batch_id, have)
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()
        have += lines.count(b"\n")
        if batch["status"] in client.TERMINAL:
            return finished(batch)
        time.sleep(1)


def _newest(server: Client) -> dict[str, Any]:
    for batch in server.batches():
        return batch
    raise ConfigurationError("there is no batch yet; make one with `batchyard submit FILE`")


def _describe(batch: dict[str, Any]) -> None:
    ours, usage = batch["batchyard"], batch["usage"] or {}
    facts = {
        "batch": batch["id"],
        "status": batch["status"] + (" (simulated)" if ours["simulated"] else ""),
        "answered/failed/total": _counts(batch),
        "expired, cancelled": f"{ours['expired']}, {ours['cancelled']}",
        "tokens in, out": f"{usage.get('input_tokens')}, {usage.get('output_tokens')}",
        "rows/s, tokens/s": f"{_rate(ours['rows_per_second'])}, {_rate(ours['tokens_per_second'])}",
        "eta": _range(batch),
        "sla": _sla(batch),
        "created": when(batch["created_at"]),
        "expires": when(batch["expires_at"]),
        "output file": batch["output_file_id"],
        "error file": batch["error_file_id"],
        "artifacts": ", ".join(artifact["name"] for artifact in ours["artifacts"]) or None,
    }
    table(["", ""], list(facts.items()))
    for problem in (batch["errors"] or {}).get("data", [])[:20]:
        where = f"line {problem['line']}: " if problem.get("line") else ""
        click.echo(f"{where}{problem['message']} ({problem['code']})", err=True)


def _counts(batch: dict[str, Any]) -> str:
    counts = batch["request_counts"]
    return f"{counts['completed']}/{counts['failed']}/{counts['total']}"


def _eta(batch: dict[str, Any]) -> str | None:
    ours = batch["batchyard"]
    if ours["eta_seconds"] is None or batch["status"] in client.TERMINAL:
        return None
    return durations.text(ours["eta_seconds"])


def _sla(batch: dict[str, Any]) -> str:
    return str(batch["batchyard"]["sla"]).replace("_", " ")


def _range(batch: dict[str, Any]) -> str | None:
    """The ETA, its range, and the time there is."""
    ours, eta = batch["batchyard"], _eta(batch)
    if eta is None:
        return None
    left = ours["due_at"] - time.time()
    due = f"due in {durations.text(left)}" if left > 0 else f"due {durations.text(-left)} ago"
    return (
        f"{eta} ({durations.text(ours['eta_earliest_seconds'])} to {durations.text(ours['eta_latest_seconds'])}), {due}"
    )


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
