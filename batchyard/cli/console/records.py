"""What a server keeps: its pages (`open`), its files, who did what (`audit`), and what was used (`usage`)."""

import itertools
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from batchyard import tariffs
from batchyard.cli import completion
from batchyard.cli.options import Said, connect, on_server, server_options
from batchyard.cli.output import lines_of, say, when
from batchyard.client.api import ApiClient


@click.command("open")
@click.argument("name", metavar="[BATCH|JOB]", required=False, shell_complete=completion.batches)
@server_options
def open_(name: str | None, data: Path | None, as_json: bool) -> None:
    """Open the page of a batch or job in the browser.

    Prints the address. Without BATCH or JOB, opens the page of running work.
    """
    server = connect(data)
    if name is not None:
        server.work(name)
    address = server.page(name)
    say({"url": address}, address, as_json)
    if not as_json:
        click.launch(address)


@click.command()
@click.argument("batch_id", metavar="[BATCH]", required=False, shell_complete=completion.batches)
@click.option("--purpose", help="List only files of this purpose, such as batch_output.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="Maximum number to list.")
@on_server
def files(server: ApiClient, batch_id: str | None, purpose: str | None, limit: int) -> Said:
    """List the files of the project, or those of a batch."""
    if batch_id is None:
        listed = list(itertools.islice(server.listed("/files", purpose=purpose), limit))
    else:
        batch = server.batch(batch_id)
        ids = [batch["input_file_id"], *(artifact["file_id"] for artifact in batch["batchyard"]["artifacts"])]
        listed = [file for file_id in ids if (file := server.find_file(file_id))]
    rows = [
        [f["id"], f["purpose"], f["bytes"], when(f["created_at"]), when(f["expires_at"]), f["filename"]] for f in listed
    ]
    return listed, lines_of(["file", "purpose", "bytes", "created", "expires", "name"], rows)


@click.command()
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="Maximum number to list.")
@on_server
def audit(server: ApiClient, limit: int) -> Said:
    """Show the audit log. An admin key shows all projects."""
    events = list(itertools.islice(server.listed("/audit"), limit))
    rows = [
        [when(event["created_at"]), event["by"]["name"], event["type"], event["data"]["id"], changes(event)]
        for event in events
    ]
    return events, lines_of(["time", "by", "what", "id", "to"], rows)


def changes(event: dict[str, Any]) -> str:
    """Return what an event says of its object beside the id."""
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in event["data"].items() if name != "id")


@click.group(invoke_without_command=True)
@click.option("--month", help="Month in UTC, such as 2026-11 [this month].")
@click.option("--by", default="day,model,project", show_default=True, help="Grouping: day, model, project, key.")
@click.option("--project", help="Show one project; an admin key otherwise shows all.")
@click.option("--csv", "as_csv", is_flag=True, help="Print csv.")
@server_options
@click.pass_context
def usage(
    context: click.Context,
    month: str | None,
    by: str,
    project: str | None,
    as_csv: bool,
    data: Path | None,
    as_json: bool,
) -> None:
    """Show the usage and cost of a month.

    Costs use the tariffs that models.toml had at the time of each request; `recompute` corrects them.
    """
    if context.invoked_subcommand is not None:
        return
    server = connect(data)
    query: dict[str, Any] = {"month": month, "by": by, "project": project}
    if as_csv:
        return click.echo(server.get("/usage.csv", **query), nl=False)
    document, dimensions = server.call("GET", "/usage", **query), by.split(",")
    columns = [*dimensions, "requests", "failed", "tokens in", "cached", "tokens out", "cost"]
    rows = [[*(line[name] for name in dimensions), *_figures(line), _money(line["cost"])] for line in document["data"]]
    total = document["total"]
    costs = ", ".join(filter(None, map(_money, total["costs"]))) or None
    rows.append(["total", *[""] * (len(dimensions) - 1), *_figures(total), costs])
    parts = [f"usage in {document['month']}", lines_of(columns, rows)]
    if total["unpriced_requests"] and costs:
        parts.append(f"without {total['unpriced_requests']} requests to models that have no tariff")
    budget = document["budget"]
    if budget is not None:
        spent, amount = (tariffs.text(Fraction(budget[name]), budget["currency"]) for name in ("spent", "amount"))
        parts.append(f"budget: {spent} of {amount} spent in {budget['month']} ({budget['state']})")
    say(document, "\n".join(parts), as_json)


@usage.command()
@click.option("--since", required=True, metavar="DATE", help="First day in UTC, such as 2026-11-01.")
@click.option("--write", is_flag=True, help="Record the new costs; otherwise only show the difference.")
@server_options
def recompute(since: str, write: bool, data: Path | None, as_json: bool) -> None:
    """Recompute recorded costs after you corrected a tariff.

    Uses today's prices of the server's models. Without --write, nothing changes.
    """
    document = connect(data).call("POST", "/usage/recompute", {"since": since, "write": write})
    rows = [
        [entry["model"], *(", ".join(filter(None, map(_money, entry[name]))) or "-" for name in ("before", "after"))]
        for entry in document["data"]
    ]
    then = "The new costs are recorded." if write else "Nothing is changed yet; add --write to record the new costs."
    text = "\n".join([lines_of(["model", "recorded", "at today's prices"], rows), then])
    say(document, text if rows else f"No cost since {since} differs from today's prices.", as_json)


def _figures(amounts: dict[str, Any]) -> list[int]:
    return [amounts[name] for name in ("requests", "failed", "input_tokens", "cached_tokens", "output_tokens")]


def _money(cost: dict[str, Any] | None) -> str | None:
    return None if cost is None else tariffs.text(Fraction(cost["amount"]), cost["currency"])
