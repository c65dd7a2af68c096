"""Commands on jobs: show them, reply to items, `cancel`, `rescore` and `retry`."""

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from batchyard.cli import completion, job_view, requests
from batchyard.cli.options import Said, connect, on_server, server_options
from batchyard.cli.output import lines_of, say, when
from batchyard.cli.watch import check_success, interruptible, print_results, print_status, see_through
from batchyard.client.api import ApiClient
from batchyard.errors import ConfigurationError
from batchyard.statuses import ITEM_STATES, RETRIABLE_STATES, TERMINAL
from batchyard.wording import cut

MAX_TEXT = 60
"""Characters of a question or an answer in a table; --json has more."""


@click.group()
def job() -> None:
    """Create and manage jobs: recipes run over a file."""


@job.command("list")
@click.option("--status", help="List only this status.")
@click.option("--recipe", help="List only jobs of this recipe.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="Maximum number to list.")
@on_server
def list_(server: ApiClient, status: str | None, recipe: str | None, limit: int) -> Said:
    """List the jobs of the project, newest first."""
    jobs = list(itertools.islice(server.jobs(status=status, recipe=recipe), limit))
    return jobs, job_view.overview(jobs)


@job.command()
@click.argument("job_id", metavar="[JOB]", required=False, shell_complete=completion.jobs)
@click.option("--watch", "live", is_flag=True, help="Refresh until everything has ended.")
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1, 100), help="Maximum number to list.")
@server_options
def status(job_id: str | None, live: bool, limit: int, data: Path | None, as_json: bool) -> None:
    """Show the progress of a job, stage by stage."""
    print_status(connect(data), "job", job_id, limit, live=live, as_json=as_json)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.option("--state", type=click.Choice(ITEM_STATES), help="List only items in this state.")
@click.option("--custom-id", help="List only the item with this custom_id.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="Maximum number to list.")
@on_server
def items(server: ApiClient, job_id: str, state: str | None, custom_id: str | None, limit: int) -> Said:
    """List the items of a job with their states."""
    listed = server.listed(f"/jobs/{job_id}/items", state=state, custom_id=custom_id)
    return _shown(list(itertools.islice(listed, limit)))


def _shown(items: list[dict[str, Any]]) -> Said:
    columns, texts = ("number", "custom_id", "state", "life", "turn", "stage", "reason"), ("question", "answer")
    rows = [
        [
            *(item[column] for column in columns),
            ", ".join(f"{score:.4g}" for score in item["scores"]) or None,
            *(item[text] and cut(" ".join(item[text].split()), MAX_TEXT) for text in texts),
        ]
        for item in items
    ]
    return items, lines_of([*(column.replace("_", " ") for column in columns), "scores", *texts], rows)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum number per kind.")
@on_server
def stuck(server: ApiClient, job_id: str, limit: int) -> Said:
    """List the items that need a person."""
    states = ("waiting_for_verdict", "stuck")
    listed = (server.listed(f"/jobs/{job_id}/items", state=state) for state in states)
    return _shown([row for of_state in listed for row in itertools.islice(of_state, limit)])


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.argument("number", type=click.IntRange(1))
@click.argument("text")
@click.option("--by", metavar="NAME", help="Name of the person [id of the API key].")
@on_server
def resolve(server: ApiClient, job_id: str, number: int, text: str, by: str | None) -> Said:
    """Complete a stuck or failed item with TEXT.

    TEXT `-` reads standard input. This works after the job's end, too.
    """
    text = sys.stdin.read() if text == "-" else text
    return _reply(server, job_id, number, {"text": text, "by": by}, "is completed")


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.argument("number", type=click.IntRange(1))
@click.option("--hint", metavar="TEXT", help="Text to add to the item's prompts.")
@on_server
def requeue(server: ApiClient, job_id: str, number: int, hint: str | None) -> Said:
    """Restart a stuck or failed item of a running job.

    For a job that has ended, use `batchyard job retry`.
    """
    return _reply(server, job_id, number, {"requeue": {"hint": hint}}, "begins again")


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.argument("number", type=click.IntRange(1))
@click.option("--gate", required=True, help="Gate of the verdict, as `job stuck` shows it.")
@click.option("--passed/--failed", required=True, help="The verdict.")
@click.option("--category", metavar="NAME", help="Reason in one word.")
@click.option("--message", metavar="TEXT", help="Reason for the model to read.")
@click.option("--by", metavar="NAME", help="Name of the person.")
@on_server
def verdict(server: ApiClient, job_id: str, number: int, **reply: Any) -> Said:
    """Pass or fail an item that waits for a verdict."""
    return _reply(server, job_id, number, {"verdict": reply}, "has its verdict")


def _reply(server: ApiClient, job_id: str, number: int, body: dict[str, Any], done: str) -> Said:
    item = server.call("POST", f"/jobs/{job_id}/items/{number}", body)
    return item, f"item {number}, {item['custom_id']}, {done}"


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File for the main result.")
@click.option("--artifacts", type=click.Path(path_type=Path, file_okay=False), help="Folder for all files of the job.")
@click.option("--follow", "live", is_flag=True, help="Print items as they end, until the job ends.")
@server_options
def results(
    job_id: str, output: Path | None, artifacts: Path | None, live: bool, data: Path | None, as_json: bool
) -> None:
    """Print the ended items, or write the job's files."""
    server = connect(data)
    if output is None and artifacts is None:
        if as_json:
            raise click.UsageError("--json needs -o or --artifacts: standard output holds the items' lines")
        with interruptible("the job goes on; the same command prints all of it again"):
            return check_success(print_results(server, job_id, live=live))
    if live:
        raise click.UsageError("--follow prints to standard output, and goes with no other option")
    document = server.job(job_id)
    main = {recipe["name"]: recipe["main"] for recipe in server.recipes()}.get(document["recipe"])
    requests.check_kind(output, main)
    save(server, document, main, output, artifacts)
    if as_json:
        click.echo(json.dumps(document))
    check_success(document)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@on_server
def events(server: ApiClient, job_id: str) -> Said:
    """Show the history of a job, oldest first."""
    history = list(server.events(job_id))
    rows = [[when(event["created_at"]), event["type"], event["id"]] for event in history]
    return history, lines_of(["time", "type", "event"], rows)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@on_server
def cancel(server: ApiClient, job_id: str) -> Said:
    """Cancel a job. Finished items are kept."""
    document = server.control(job_id, "cancel")
    return document, f"{document['id']} is {document['status']}"


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--wait", is_flag=True, help="Wait for the end and show progress.")
@server_options
def rescore(job_id: str, overrides: tuple[str, ...], wait: bool, data: Path | None, as_json: bool) -> None:
    """Score the answers of an ended job again, as a new job.

    No engine runs. KEY=VALUE sets the options of the scoring.
    """
    server = connect(data)
    body = {"options": _overridden(server, job_id, overrides)}
    document = server.call("POST", f"/jobs/{job_id}/rescore", body)
    see_through(server, document, as_json, summary=True) if wait else say(document, document["id"], as_json)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.option(
    "--state",
    "states",
    type=click.Choice(RETRIABLE_STATES),
    multiple=True,
    help="Retry only items in this state; repeatable.",
)
@click.option("-o", "--option", "overrides", metavar="KEY=VALUE", multiple=True, help="Option to change; repeatable.")
@click.option("--window", metavar="TIME", help="New deadline, such as 90m.")
@click.option("--wait", is_flag=True, help="Wait for the end and show progress.")
@server_options
def retry(
    job_id: str,
    states: tuple[str, ...],
    overrides: tuple[str, ...],
    window: str | None,
    wait: bool,
    data: Path | None,
    as_json: bool,
) -> None:
    """Run the incomplete items of an ended job as a new job."""
    server = connect(data)
    body = {"states": list(states), "options": _overridden(server, job_id, overrides), "completion_window": window}
    given = {name: value for name, value in body.items() if value}
    document = server.call("POST", f"/jobs/{job_id}/retry", given)
    see_through(server, document, as_json, summary=True) if wait else say(document, document["id"], as_json)


def _overridden(server: ApiClient, job_id: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return the options of a job that KEY=VALUE texts change; others stay."""
    from batchyard import config

    if not overrides:
        return {}
    source = server.job(job_id)
    recipe = next((entry for entry in server.recipes() if entry["name"] == source["recipe"]), None)
    if recipe is None:
        raise ConfigurationError(f"the recipe {source['recipe']!r} of job {job_id} is not there any more")
    schema = config.Schema(recipe["options"])
    layers = [config.override(schema, text) for text in overrides]
    changed = {name for layer in layers for name in layer.values}
    options = {name: value for name, value in source["batchyard"]["options"].items() if name in changed}
    settings = config.resolve(schema, [config.Layer(config.DEFAULT, options), *layers], complete=False)
    return config.options(settings)


def save(
    server: ApiClient, document: dict[str, Any], main: str | None, output: Path | None, folder: Path | None
) -> list[Path]:
    """Write a job's main artifact to `output` and all into `folder`; return what was written."""
    artifacts = {artifact["name"]: artifact["file_id"] for artifact in document["batchyard"]["artifacts"]}
    written = []
    if output is not None and main is not None and main in artifacts:
        if requests.is_converted(output, main):
            from batchyard.client import tables

            with tempfile.TemporaryDirectory(prefix="batchyard-") as temporary:
                original = Path(temporary) / Path(main).name
                requests.save(server, artifacts[main], original)
                tables.write(output, tables.read(original))
        else:
            requests.save(server, artifacts[main], output)
        written.append(output)
    elif output is not None and document["status"] not in TERMINAL:
        raise ConfigurationError(f"job {document['id']} is {document['status']}: its artifacts come at the end")
    if folder is not None:
        requests.make_folder(folder)
        for name, file_id in artifacts.items():
            requests.save(server, file_id, folder / Path(name).name)
        written += [folder] if artifacts else []
    return written
