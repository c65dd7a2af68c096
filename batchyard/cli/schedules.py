"""Commands on a project's schedules: `schedule create|list|show|pause|resume|run|runs|delete`."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from batchyard.cli import requests
from batchyard.cli.options import connect, data_option
from batchyard.cli.output import json_option, say, table, when
from batchyard.endpoints.catalog import CHAT
from batchyard.errors import ConfigurationError

OVERLAPS = ("skip", "allow", "cancel_previous")
CATCH_UPS = ("latest", "none", "all")

_file = requests.LocalPath(path_type=Path, exists=True, dir_okay=False)


@click.group()
def schedule() -> None:
    """Recurring batches."""


@schedule.command()
@click.option("--name", required=True, help="What people call it.")
@click.option("--cron", required=True, metavar="EXPRESSION", help="Five fields, such as '30 6 * * MON-FRI'.")
@click.option("--timezone", default="UTC", show_default=True, help="IANA name, such as Europe/Berlin.")
@click.option("--file", type=_file, help="A batch file, the same in every run.")
@click.option("--template", type=_file, help="A batch file with {{date}}, {{datetime}} or {{scheduled_at}}.")
@click.option("--url", help="A bucket the server may read, such as s3://bucket/in/{{date}}/: what is there then.")
@requests.endpoint_option
@requests.window_option
@requests.post_process_option
@requests.on_invalid_option
@requests.priority_option
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Kept with each batch; may be given 16 times.")
@click.option("--overlap", type=click.Choice(OVERLAPS), default="skip", show_default=True, help="While a batch runs.")
@click.option("--catch-up", type=click.Choice(CATCH_UPS), default="latest", show_default=True, help="Of missed times.")
@data_option
@json_option
def create(
    name: str,
    cron: str,
    timezone: str,
    file: Path | None,
    template: Path | None,
    url: str | None,
    endpoint: str | None,
    window: str,
    post_process: tuple[str, ...],
    on_invalid: str,
    priority: str,
    metadata: tuple[str, ...],
    overlap: str,
    catch_up: str,
    data: Path | None,
    as_json: bool,
) -> None:
    """Make a schedule of --file, --template or --url; prints its id and its next times."""
    if [file, template, url].count(None) != 2:
        raise click.UsageError("give one of --file, --template and --url")
    source = file or template
    options = {
        "endpoint": endpoint or (requests.endpoint_of(source) if source else CHAT.path),
        "completion_window": window,
        "metadata": requests.pairs(metadata, "--metadata") or None,
        "post_process": requests.steps(post_process),
        "on_invalid": on_invalid,
        "priority": priority,
    }
    from batchyard.client.api import uploaded

    server = connect(data)
    with nullcontext() if file is None else uploaded(server, server.upload(file)) as file_id:
        created = server.create_schedule(
            name=name,
            cron=cron,
            timezone=timezone,
            input={"template": _text(template)} if template else {"file_id": file_id} if file_id else {"url": url},
            batch=options,
            overlap=overlap,
            catch_up=catch_up,
        )
    times = [f"next {when(time, created['timezone'])}" for time in created["next_runs"]]
    say(created, "\n".join([created["id"], *times]), as_json)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not UTF-8: {error.reason}; save it as UTF-8") from error


@schedule.command("list")
@data_option
@json_option
def list_(data: Path | None, as_json: bool) -> None:
    """The project's schedules, newest first."""
    schedules = list(connect(data).schedules())
    if as_json:
        return say(schedules, "", True)
    rows = [
        [s["id"], s["name"], s["cron"], s["timezone"], _next(s), (s["last_run"] or {}).get("state")] for s in schedules
    ]
    table(["schedule", "name", "cron", "timezone", "next run", "last run"], rows)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@data_option
@json_option
def show(schedule_id: str, data: Path | None, as_json: bool) -> None:
    """One schedule, its next times and its last run."""
    document = connect(data).schedule(schedule_id)
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
@data_option
@json_option
def pause(schedule_id: str, data: Path | None, as_json: bool) -> None:
    """Pause a schedule: nothing runs, and nothing is missed, until it is resumed."""
    say(connect(data).pause_schedule(schedule_id), f"{schedule_id} is paused", as_json)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@data_option
@json_option
def resume(schedule_id: str, data: Path | None, as_json: bool) -> None:
    """Let a paused schedule run again."""
    resumed = connect(data).resume_schedule(schedule_id)
    say(resumed, f"{schedule_id} runs next at {_next(resumed)}", as_json)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@data_option
@json_option
def run(schedule_id: str, data: Path | None, as_json: bool) -> None:
    """Run a schedule now; prints the id of the batch or job."""
    document = connect(data).run_schedule(schedule_id)
    say(document, document["batch_id"] or document["job_id"] or f"{document['state']}: {document['reason']}", as_json)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--limit", default=20, show_default=True, help="Show this many, newest first.")
@data_option
@json_option
def runs(schedule_id: str, limit: int, data: Path | None, as_json: bool) -> None:
    """What has become of a schedule's times, newest first."""
    server = connect(data)
    history = list(itertools.islice(server.schedule_runs(schedule_id), limit))
    if as_json:
        return say(history, "", True)
    zone = server.schedule(schedule_id)["timezone"]
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
@data_option
@json_option
def delete(schedule_id: str, data: Path | None, as_json: bool) -> None:
    """Delete a schedule and the history of its runs; their batches stay."""
    say(connect(data).delete_schedule(schedule_id), f"{schedule_id} is deleted", as_json)


def _next(document: dict[str, Any]) -> str | None:
    return "paused" if document["paused"] else when(document["next_run_at"], document["timezone"])
