"""Commands on a project's schedules: `schedule create|list|show|pause|resume|run|runs|delete`."""

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from batchyard.cli import requests
from batchyard.cli.options import Said, on_server
from batchyard.cli.output import lines_of, when
from batchyard.client.api import ApiClient, uploaded
from batchyard.errors import ConfigurationError

OVERLAPS = ("skip", "allow", "cancel_previous")
CATCH_UPS = ("latest", "none", "all")


@click.group()
def schedule() -> None:
    """Manage recurring batches."""


@schedule.command()
@click.option("--name", required=True, help="Name of the schedule.")
@click.option("--cron", metavar="EXPRESSION", help="Cron expression; with --watch, every minute.")
@click.option("--timezone", default="UTC", show_default=True, help="IANA time zone, such as Europe/Berlin.")
@click.option("--file", type=requests.INPUT_FILE, help="Batch file for every run.")
@click.option(
    "--template", type=requests.INPUT_FILE, help="Batch file with {{date}}, {{datetime}} or {{scheduled_at}}."
)
@click.option("--url", help="Bucket folder to read at each run, such as s3://bucket/in/{{date}}/.")
@click.option("--watch", metavar="URL", help="Bucket objects to make a batch of each, such as s3://bucket/in/*.jsonl.")
@requests.batch_options
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Metadata of each batch; up to 16 pairs.")
@click.option("--overlap", type=click.Choice(OVERLAPS), default="skip", show_default=True, help="If one is active.")
@click.option(
    "--catch-up", type=click.Choice(CATCH_UPS), default="latest", show_default=True, help="Missed runs to make."
)
@on_server
def create(
    server: ApiClient, file: Path | None, template: Path | None, url: str | None, watch: str | None, **options: Any
) -> Said:
    """Create a schedule from --file, --template, --url or --watch.

    Prints its id and its next times.
    """
    if [file, template, url, watch].count(None) != 3:
        raise click.UsageError("give one of --file, --template, --url and --watch")
    if options["cron"] is None and watch is None:
        raise click.UsageError("give --cron, such as '30 6 * * MON-FRI'")
    options["cron"] = options["cron"] or "* * * * *"
    fields = requests.batch_fields(options, file or template)
    try:
        text = template and template.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{template} is not UTF-8: {error.reason}; save it as UTF-8") from error
    with nullcontext() if file is None else uploaded(server, server.upload(file)) as file_id:
        source = {"template": text} if template else {"file_id": file_id, "url": url, "watch": watch}
        body = {**options, "input": source, "batch": fields}
        created = server.call("POST", "/schedules", body)
    times = [f"next {when(time, created['timezone'])}" for time in created["next_runs"]]
    return created, "\n".join([created["id"], *times])


@schedule.command("list")
@on_server
def list_(server: ApiClient) -> Said:
    """List the schedules of the project, newest first."""
    schedules = list(server.listed("/schedules"))
    rows = [
        [s["id"], s["name"], s["cron"], s["timezone"], _next(s), (s["last_run"] or {}).get("state")] for s in schedules
    ]
    return schedules, lines_of(["schedule", "name", "cron", "timezone", "next run", "last run"], rows)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@on_server
def show(server: ApiClient, schedule_id: str) -> Said:
    """Show a schedule, its next times and its last run."""
    document = server.call("GET", f"/schedules/{schedule_id}")
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
    return document, lines_of(["", ""], list(facts.items()))


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@on_server
def pause(server: ApiClient, schedule_id: str) -> Said:
    """Pause a schedule. Paused times are not caught up."""
    return server.call("POST", f"/schedules/{schedule_id}/pause"), f"{schedule_id} is paused"


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@on_server
def resume(server: ApiClient, schedule_id: str) -> Said:
    """Resume a paused schedule."""
    resumed = server.call("POST", f"/schedules/{schedule_id}/resume")
    return resumed, f"{schedule_id} runs next at {_next(resumed)}"


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@on_server
def run(server: ApiClient, schedule_id: str) -> Said:
    """Run a schedule now. Prints the id of the batch or job."""
    document = server.call("POST", f"/schedules/{schedule_id}/run")
    return document, document["batch_id"] or document["job_id"] or f"{document['state']}: {document['reason']}"


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--limit", default=20, show_default=True, help="Maximum number to list.")
@on_server
def runs(server: ApiClient, schedule_id: str, limit: int) -> Said:
    """List the runs of a schedule, newest first."""
    history = list(itertools.islice(server.listed(f"/schedules/{schedule_id}/runs"), limit))
    zone = server.call("GET", f"/schedules/{schedule_id}")["timezone"]
    rows = [
        [
            *(when(r[at], zone) for at in ("scheduled_at", "created_at")),
            r["state"],
            r["batch_id"] or r["job_id"],
            r["reason"],
        ]
        for r in history
    ]
    return history, lines_of(["due", "made", "state", "batch or job", "reason"], rows)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@on_server
def delete(server: ApiClient, schedule_id: str) -> Said:
    """Delete a schedule and its history. Its batches stay."""
    return server.call("DELETE", f"/schedules/{schedule_id}"), f"{schedule_id} is deleted"


def _next(document: dict[str, Any]) -> str | None:
    return "paused" if document["paused"] else when(document["next_run_at"], document["timezone"])
