"""Commands on jobs: show them, reply to items, `cancel`, `rescore` and `retry`."""

from __future__ import annotations

import itertools
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import completion, job_view, requests, view
from batchyard.cli.options import connect, data_option
from batchyard.cli.output import json_option, plain, say, table, when
from batchyard.cli.watch import Unsuccessful, interruptible
from batchyard.client import progress, resume
from batchyard.errors import ConfigurationError
from batchyard.statuses import ITEM_STATES, RETRIABLE_STATES, TERMINAL
from batchyard.wording import cut

if TYPE_CHECKING:
    from batchyard.client.api import ApiClient


MAX_TEXT = 60
"""Characters of a question or an answer in a table; --json has more."""


@click.group()
def job() -> None:
    """Jobs: recipes over the rows of a file."""


@job.command("list")
@click.option("--status", help="Only jobs with this status.")
@click.option("--recipe", help="Only jobs of this recipe.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="Show this many, newest first.")
@data_option
@json_option
def list_(status: str | None, recipe: str | None, limit: int, data: Path | None, as_json: bool) -> None:
    """The project's jobs, newest first."""
    jobs = list(itertools.islice(connect(data).jobs(status=status, recipe=recipe), limit))
    click.echo(json.dumps(jobs) if as_json else job_view.overview(jobs))


@job.command()
@click.argument("job_id", metavar="[JOB]", required=False, shell_complete=completion.jobs)
@click.option("--watch", "live", is_flag=True, help="Draw it again until all of it has ended.")
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1, 100), help="Without JOB: so many.")
@data_option
@json_option
def status(job_id: str | None, live: bool, limit: int, data: Path | None, as_json: bool) -> None:
    """How far a job is, stage by stage; without JOB, a table of the newest."""
    server = connect(data)

    def fetch() -> list[dict[str, Any]]:
        return [server.job(job_id)] if job_id else list(itertools.islice(server.jobs(), limit))

    def draw(jobs: list[dict[str, Any]]) -> str:
        if not job_id:
            return job_view.overview(jobs)
        children = list(server.jobs(parent_id=job_id)) if jobs[0]["batchyard"]["children"] else []
        return "\n\n".join(part for part in (job_view.facts(jobs[0]), job_view.children(jobs[0], children)) if part)

    jobs = fetch()
    watched = {one["id"] for one in jobs if job_id or one["status"] not in TERMINAL}
    if live:
        with interruptible("what was watched goes on"):
            jobs = progress.follow(fetch, draw, job_view.brief)
    click.echo(json.dumps(jobs[0] if job_id else jobs) if as_json else draw(jobs))
    for problem in progress.problems(jobs[0]) if job_id and not as_json else ():
        click.echo(plain(problem), err=True)
    for one in jobs:
        if live and one["id"] in watched:
            check_success(one)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.option("--state", type=click.Choice(ITEM_STATES), help="Only items in this state.")
@click.option("--custom-id", help="Only the item of this id.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="Show this many.")
@data_option
@json_option
def items(job_id: str, state: str | None, custom_id: str | None, limit: int, data: Path | None, as_json: bool) -> None:
    """A job's items by number: where each is, or how it ended."""
    rows = list(itertools.islice(connect(data).job_items(job_id, state=state, custom_id=custom_id), limit))
    if as_json:
        return say(rows, "", True)
    _items_table(rows)


def _items_table(rows: list[dict[str, Any]]) -> None:
    columns = ("number", "custom_id", "state", "life", "turn", "stage", "reason")
    texts = ("question", "answer")
    table(
        [*(column.replace("_", " ") for column in columns), "scores", *texts],
        [
            [
                *(row[column] for column in columns),
                ", ".join(f"{score:.4g}" for score in row["scores"]) or None,
                *(row[text] and cut(" ".join(row[text].split()), MAX_TEXT) for text in texts),
            ]
            for row in rows
        ],
    )


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="Show this many of each.")
@data_option
@json_option
def stuck(job_id: str, limit: int, data: Path | None, as_json: bool) -> None:
    """A job's items that need a person: those that wait for a verdict, with its gate, and those that are stuck."""
    server = connect(data)
    states = ("waiting_for_verdict", "stuck")
    rows = [row for state in states for row in itertools.islice(server.job_items(job_id, state=state), limit)]
    if as_json:
        return say(rows, "", True)
    _items_table(rows)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.argument("number", type=click.IntRange(1))
@click.argument("text")
@click.option("--by", metavar="NAME", help="Who says so; otherwise the id of the API key.")
@data_option
@json_option
def resolve(job_id: str, number: int, text: str, by: str | None, data: Path | None, as_json: bool) -> None:
    """Complete an item that is stuck or failed with TEXT (`-`: standard input), also after the job's end."""
    text = sys.stdin.read() if text == "-" else text
    _reply(job_id, number, {"text": text, "by": by}, "is completed", data, as_json)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.argument("number", type=click.IntRange(1))
@click.option("--hint", metavar="TEXT", help="What its prompts say besides.")
@data_option
@json_option
def requeue(job_id: str, number: int, hint: str | None, data: Path | None, as_json: bool) -> None:
    """Have an item that is stuck or failed begin again, while the job runs; afterwards there is `job retry`."""
    _reply(job_id, number, {"requeue": {"hint": hint}}, "begins again", data, as_json)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.argument("number", type=click.IntRange(1))
@click.option("--gate", required=True, help="The gate that the item waits for, as `job stuck` shows it.")
@click.option("--passed/--failed", required=True, help="The verdict.")
@click.option("--category", metavar="NAME", help="Why it did not pass, in a word.")
@click.option("--message", metavar="TEXT", help="Why, as a model is told.")
@click.option("--by", metavar="NAME", help="Who says so.")
@data_option
@json_option
def verdict(
    job_id: str,
    number: int,
    gate: str,
    passed: bool,
    category: str | None,
    message: str | None,
    by: str | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Say whether what an item waits for passes."""
    body = {"gate": gate, "passed": passed, "category": category, "message": message, "by": by}
    _reply(job_id, number, {"verdict": body}, "has its verdict", data, as_json)


def _reply(job_id: str, number: int, body: dict[str, Any], done: str, data: Path | None, as_json: bool) -> None:
    item = connect(data).reply_to_item(job_id, number, body)
    say(item, f"item {number}, {item['custom_id']}, {done}", as_json)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Where the main artifact goes.")
@click.option("--artifacts", type=click.Path(path_type=Path, file_okay=False), help="Folder for all artifacts.")
@click.option("--follow", "live", is_flag=True, help="Print lines as items end, until the job has ended.")
@data_option
@json_option
def results(
    job_id: str, output: Path | None, artifacts: Path | None, live: bool, data: Path | None, as_json: bool
) -> None:
    """Print a line for each item that has ended; or write the job's artifacts to files."""
    server = connect(data)
    if output is None and artifacts is None:
        if as_json:
            raise click.UsageError("--json needs -o or --artifacts: standard output holds the items' lines")
        with interruptible("the job goes on; the same command prints all of it again"):
            return _print(server, job_id, live)
    if live:
        raise click.UsageError("--follow prints to standard output, and goes with no other option")
    document = server.job(job_id)
    main = {recipe["name"]: recipe["main"] for recipe in server.recipes()}.get(document["recipe"])
    save(server, document, main, output, artifacts)
    if as_json:
        click.echo(json.dumps(document))
    check_success(document)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@data_option
@json_option
def events(job_id: str, data: Path | None, as_json: bool) -> None:
    """What has happened to a job, oldest first."""
    history = list(connect(data).job_events(job_id))
    if as_json:
        return say(history, "", True)
    table(["time", "type", "event"], [[when(event["created_at"]), event["type"], event["id"]] for event in history])


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@data_option
@json_option
def cancel(job_id: str, data: Path | None, as_json: bool) -> None:
    """Cancel a job; what has ended is kept."""
    document = connect(data).cancel_job(job_id)
    say(document, f"{document['id']} is {document['status']}", as_json)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--wait", is_flag=True, help="Wait for the end, with a progress bar.")
@data_option
@json_option
def rescore(job_id: str, overrides: tuple[str, ...], wait: bool, data: Path | None, as_json: bool) -> None:
    """Judge the answers of an ended job anew, as a new job; no engine is asked. KEY=VALUE sets what judges."""
    server = connect(data)
    document = server.rescore_job(job_id, _overridden(server, job_id, overrides))
    _made(server, document, wait, as_json)


@job.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.option(
    "--state",
    "states",
    type=click.Choice(RETRIABLE_STATES),
    multiple=True,
    help="Only items in this state; repeatable.",
)
@click.option("-o", "--option", "overrides", metavar="KEY=VALUE", multiple=True, help="Another option; repeatable.")
@click.option("--window", metavar="TIME", help="Another completion window, such as 90m.")
@click.option("--wait", is_flag=True, help="Wait for the end, with a progress bar.")
@data_option
@json_option
def retry(
    job_id: str,
    states: tuple[str, ...],
    overrides: tuple[str, ...],
    window: str | None,
    wait: bool,
    data: Path | None,
    as_json: bool,
) -> None:
    """Run the items of an ended job that did not complete again, as a new job."""
    server = connect(data)
    body = {"states": list(states), "options": _overridden(server, job_id, overrides), "completion_window": window}
    document = server.retry_job(job_id, **{name: value for name, value in body.items() if value})
    _made(server, document, wait, as_json)


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


def _made(server: ApiClient, document: dict[str, Any], wait: bool, as_json: bool) -> None:
    """Say which job was made, or wait for its end and say how it was."""
    if wait:
        with interruptible(f"the job goes on; `batchyard job status {document['id']} --watch` takes it up"):
            document = watch(server, document["id"])
        say(document, job_view.summary(document), as_json)
        return check_success(document)
    say(document, document["id"], as_json)


def watch(server: ApiClient, job_id: str) -> dict[str, Any]:
    """Show a job's progress until it has ended, and return the job."""
    interrupted = partial(resume.goes_on, server, [server.job(job_id)])
    return progress.follow(
        lambda: [server.job(job_id)], lambda jobs: job_view.progress(jobs[0]), job_view.brief, interrupted
    )[0]


def save(
    server: ApiClient, document: dict[str, Any], main: str | None, output: Path | None, folder: Path | None
) -> list[Path]:
    """Write a job's main artifact to `output` and all into `folder`; return what was written.

    Raises:
        ConfigurationError: it has none (yet), or a file cannot be written.
    """
    artifacts = {artifact["name"]: artifact["file_id"] for artifact in document["batchyard"]["artifacts"]}
    written = []
    if output is not None and main in artifacts:
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


def check_success(document: dict[str, Any]) -> None:
    """Raise Unsuccessful if an ended job has uncompleted items or no report."""
    if document["status"] not in TERMINAL:
        return
    name, status, counts = document["id"], document["status"], document["request_counts"]
    if status != "completed":
        raise Unsuccessful(view.refusal(document, "batchyard job status"))
    report = document["batchyard"]["report"] or {}
    if report.get("status") == "failed":
        raise Unsuccessful(f"job {name}: its artifacts could not be made: {report.get('error')}")
    kind = job_view.kind_of(document)
    if kind.has_verdict and (document["batchyard"]["metrics"] or {}).get("passed") is False:
        raise Unsuccessful(f"job {name}: not all of `pass` holds; its artifact comparison.md says what does not")
    if kind.may_fail_in_part and counts["completed"]:
        return
    for state, words in (("failed", "failed"), ("stuck", "are stuck")):
        if counts[state]:
            raise Unsuccessful(
                f"job {name}: {counts[state]} of {counts['total']} items {words}; "
                f"`batchyard job items {name} --state {state}` tells why"
            )


def _print(server: ApiClient, job_id: str, live: bool) -> None:
    """Print the lines of ended items; if `live`, go on until the job has ended."""
    printed = 0
    while True:
        document = server.job(job_id)  # before the lines: a job that has ended has all of them
        lines = server.job_results(job_id, printed)
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()
        printed += lines.count(b"\n")
        if not live or document["status"] in TERMINAL:
            return check_success(document)
        time.sleep(1)
