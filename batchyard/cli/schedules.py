"""Commands on a project's schedules: `schedule create|list|show|pause|resume|run|runs|delete`."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from batchyard.cli import requests
from batchyard.cli.options import connect, server_options
from batchyard.cli.output import say, say_table, table, when
from batchyard.client.api import uploaded
from batchyard.errors import ConfigurationError

OVERLAPS = ("skip", "allow", "cancel_previous")
CATCH_UPS = ("latest", "none", "all")


@click.group()
def schedule() -> None:
    """Manage recurring batches."""


@schedule.command()
@click.option("--name", required=True, help="Name of the schedule.")
@click.option("--cron", required=True, metavar="EXPRESSION", help="Cron expression, such as '30 6 * * MON-FRI'.")
@click.option("--timezone", default="UTC", show_default=True, help="IANA time zone, such as Europe/Berlin.")
@click.option("--file", type=requests.INPUT_FILE, help="Batch file for every run.")
@click.option(
    "--template", type=requests.INPUT_FILE, help="Batch file with {{date}}, {{datetime}} or {{scheduled_at}}."
)
@click.option("--url", help="Bucket folder to read at each run, such as s3://bucket/in/{{date}}/.")
@requests.batch_options
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Metadata of each batch; up to 16 pairs.")
@click.option("--overlap", type=click.Choice(OVERLAPS), default="skip", show_default=True, help="If one is active.")
@click.option(
    "--catch-up", type=click.Choice(CATCH_UPS), default="latest", show_default=True, help="Missed runs to make."
)
@server_options
def create(
    file: Path | None, template: Path | None, url: str | None, data: Path | None, as_json: bool, **options: Any
) -> None:
    """Create a schedule from --file, --template or --url.

    Prints its id and its next times.
    """
    if [file, template, url].count(None) != 2:
        raise click.UsageError("give one of --file, --template and --url")
    fields = requests.batch_fields(options, file or template)
    try:
        text = template and template.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{template} is not UTF-8: {error.reason}; save it as UTF-8") from error
    server = connect(data)
    with nullcontext() if file is None else uploaded(server, server.upload(file)) as file_id:
        source = {"template": text} if template else {"file_id": file_id} if file_id else {"url": url}
        body = {**options, "input": source, "batch": fields}
        created = server.call("POST", "/schedules", body)
    times = [f"next {when(time, created['timezone'])}" for time in created["next_runs"]]
    say(created, "\n".join([created["id"], *times]), as_json)


@schedule.command("list")
@server_options
def list_(data: Path | None, as_json: bool) -> None:
    """List the schedules of the project, newest first."""
    schedules = list(connect(data).listed("/schedules"))
    rows = [
        [s["id"], s["name"], s["cron"], s["timezone"], _next(s), (s["last_run"] or {}).get("state")] for s in schedules
    ]
    say_table(schedules, ["schedule", "name", "cron", "timezone", "next run", "last run"], rows, as_json)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@server_options
def show(schedule_id: str, data: Path | None, as_json: bool) -> None:
    """Show a schedule, its next times and its last run."""
    document = connect(data).call("GET", f"/schedules/{schedule_id}")
    if as_json:
        return say(document, "", True)
    last, source, zone = document["last_run"], document["input"], document["timezone"]
    facts = {
        "schedule": document["id"],
        "name": document["name"],
        "cron": f"{document['cron']} ({document['timezone']})",
        "next runs": ", ".join(str(when(time, zone)) for time in document["next_runs"]) or _next(document),
        "last run": last
        and f"{when(last['created_at'], zone)} {last['state']} {last['reason'] or last['batch_id'] or last['job_id']}",
        "input": f"{source['kind']}, {source['bytes']} bytes, sha256 {source['sha256']}",
        "overlap, catch up": f"{document['overlap']}, {document['catch_up']}",
    }
    table(["", ""], list(facts.items()))


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@server_options
def pause(schedule_id: str, data: Path | None, as_json: bool) -> None:
    """Pause a schedule. Paused times are not caught up."""
    say(connect(data).call("POST", f"/schedules/{schedule_id}/pause"), f"{schedule_id} is paused", as_json)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@server_options
def resume(schedule_id: str, data: Path | None, as_json: bool) -> None:
    """Resume a paused schedule."""
    resumed = connect(data).call("POST", f"/schedules/{schedule_id}/resume")
    say(resumed, f"{schedule_id} runs next at {_next(resumed)}", as_json)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@server_options
def run(schedule_id: str, data: Path | None, as_json: bool) -> None:
    """Run a schedule now. Prints the id of the batch or job."""
    document = connect(data).call("POST", f"/schedules/{schedule_id}/run")
    say(document, document["batch_id"] or document["job_id"] or f"{document['state']}: {document['reason']}", as_json)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--limit", default=20, show_default=True, help="Maximum number to list.")
@server_options
def runs(schedule_id: str, limit: int, data: Path | None, as_json: bool) -> None:
    """List the runs of a schedule, newest first."""
    server = connect(data)
    history = list(itertools.islice(server.listed(f"/schedules/{schedule_id}/runs"), limit))
    if as_json:
        return say(history, "", True)
    zone = server.call("GET", f"/schedules/{schedule_id}")["timezone"]
    rows = [
        [
            when(r["scheduled_at"], zone),
            when(r["created_at"], zone),
            r["state"],
            r["batch_id"] or r["job_id"],
            r["reason"],
        ]
        for r in history
    ]
    table(["due", "made", "state", "batch or job", "reason"], rows)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@server_options
def delete(schedule_id: str, data: Path | None, as_json: bool) -> None:
    """Delete a schedule and its history. Its batches stay."""
    say(connect(data).call("DELETE", f"/schedules/{schedule_id}"), f"{schedule_id} is deleted", as_json)


def _next(document: dict[str, Any]) -> str | None:
    return "paused" if document["paused"] else when(document["next_run_at"], document["timezone"])
