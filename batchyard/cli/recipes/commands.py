"""Commands of a recipe: run it to the last artifact, create a job, show its options."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import background, job_view, jobs, requests, view
from batchyard.cli.options import add_options, connect, load_settings, server_options, stack_options
from batchyard.cli.output import complain, lines_of, note, plain, say
from batchyard.cli.recipes import earlier
from batchyard.cli.watch import check_success, interruptible, see_through, watch
from batchyard.client import resume
from batchyard.client.api import ApiClient, uploaded

if TYPE_CHECKING:
    from batchyard.config import Setting


VIEW = "view.json"


source_argument = click.argument("source", metavar="FILE", type=requests.INPUT_FILE)
overrides_argument = click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
files_option = click.option(
    *("-c", "--config", "files"),
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of options: YAML, TOML or JSON; repeatable.",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what the job would be, and create nothing.")
output_options = add_options(
    click.option("-o", "--output", type=requests.OUTPUT_FILE, help="File for the results."),
    click.option(
        "--artifacts", type=click.Path(path_type=Path, file_okay=False), help="Folder for all files of the job."
    ),
)
_of_jobs = add_options(
    click.option(
        "--seed", type=click.IntRange(0, 2**53 - 1), default=0, show_default=True, help="Seed for all requests."
    ),
    click.option("--name", help="Name of the job."),
    requests.window_option,
    requests.callback_option,
)
run_options = add_options(
    _of_jobs,
    click.option("--again", is_flag=True, help="Ignore an earlier job of the same input and recompute."),
    stack_options,
)
"""The options of a command that makes a job and sees it through."""
create_options = add_options(
    _of_jobs,
    click.option(
        "--metadata", "pairs", multiple=True, metavar="KEY=VALUE", help="Metadata of the job; up to 16 pairs."
    ),
    dry_run_option,
    click.option("--wait", is_flag=True, help="Wait for the end and show progress."),
    server_options,
)
"""The options of a command that creates a job."""

_extend = click.option(
    "--extend",
    "answers_from",
    metavar="JOB",
    help="Reuse the answers of this ended job, for example with a larger n.",
)


@source_argument
@overrides_argument
@output_options
@files_option
@_extend
@run_options
def answer(recipe: dict[str, Any], settings: list[Setting], source: Path, **fields: Any) -> None:
    """FILE is .parquet, .jsonl, .csv or .txt, one item per row. KEY=VALUE sets any option: temperature=0.8.

    If no server is running, the command starts a local stack and stops it afterwards. To resume after Ctrl-C or a
    crash, run the same command again: nothing is recomputed. If the job ended with transient failures, a new job reuses
    its answers and retries the rest.
    """
    one_shot(recipe, settings, source, **fields)


def one_shot(
    recipe: Mapping[str, Any],
    settings: list[Setting],
    source: Path,
    *,
    output: Path | None,
    artifacts: Path | None,
    window: str,
    again: bool,
    as_json: bool,
    late: Callable[[ApiClient, bool], Mapping[str, Any]] = lambda server, again: {},
    summary: Callable[[ApiClient, dict[str, Any]], str] = lambda server, job: job_view.summary(job),
    dry_run: bool = False,
    outlook: Callable[[dict[str, Any]], str] = job_view.outlook,
    **fields: Any,
) -> None:
    """Run a recipe to its last artifact, or take up the same command's job, see `earlier.find`.

    Args:
        late: returns options of a new job beside the others, by the server and `again`. They are no part of what the
            command is known by.
        summary: returns what to say of the ended job.
        dry_run: only say what the job would be, in the words of `outlook`.
        fields: `data` and `models`, the command's; `seed`, `name` and others of the job's request.
    """
    from batchyard import config

    options = config.options(settings)
    in_force = load_settings(data=fields.pop("data"), models=fields.pop("models"))
    if dry_run:
        with background.server(in_force.data, in_force.models) as server:
            document = _outlook(server, source, _body(recipe, options, window))
        return say(document, outlook(document), as_json)
    requests.check_writable(output)
    requests.check_kind(output, recipe["main"])
    requests.make_folder(artifacts)
    with interruptible(resume.remedy(again)), background.server(in_force.data, in_force.models) as server:
        identity = [recipe["name"], recipe["sha256"], options, fields["seed"], resume.sha256(source), source.suffix]
        mark = resume.mark(server, *identity)
        job, answers_from = (None, None) if again else earlier.find(server, recipe["name"], mark)
        if job is None:
            fields |= {"answers_from": answers_from} if answers_from else {}
            body = _body(recipe, {**options, **late(server, again)}, window, metadata=mark, **fields)
            job = _created(server, source, body)
        job = watch(server, job)
        written = jobs.save(server, job, recipe["main"], output, artifacts)
        text = "" if as_json else summary(server, job)
    if as_json:
        click.echo(json.dumps(job))
    else:
        click.echo(plain(text))
        for path in written:
            click.echo(f"Written: {path}")
    if output is not None and output not in written:
        complain(f"{output} is not written: the job has no {recipe['main']}")
    check_success(job)


@source_argument
@overrides_argument
@files_option
@_extend
@click.option(
    "--plan",
    metavar="ROWS",
    type=click.IntRange(1, 1_000),
    help="Answer a random sample of this many items, pause, and forecast the rest.",
)
@requests.stop_when_option
@create_options
def create(
    recipe: dict[str, Any],
    settings: list[Setting],
    source: Path,
    window: str,
    pairs: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    data: Path | None,
    as_json: bool,
    plan: int | None = None,
    stop_when: tuple[str, ...] = (),
    **fields: Any,
) -> None:
    """Upload FILE, with one item per row, and create a job. Prints the job's id. KEY=VALUE sets any option."""
    from batchyard import config

    fields |= {} if plan is None else {"plan": {"rows": plan}}
    body = _body(recipe, config.options(settings), window, **fields)
    metadata = requests.pairs(pairs, "--metadata") or None
    server = connect(data)
    if dry_run:
        outlook = _outlook(server, source, body)
        return say(outlook, job_view.outlook(outlook), as_json)
    limited = {"metadata": metadata, "stop_when": requests.limits(stop_when)}
    job = _created(server, source, {**body, **limited})
    if plan is not None:
        from batchyard.client import asking  # imports pydantic

        with interruptible(f"the sample keeps running; `batchyard job status {job['id']}` shows its progress"):
            job = asking.sampled(server, job)
        if job["batchyard"]["paused_at"] is not None:
            report = server.call("GET", f"/jobs/{job['id']}/plan")
            return say(report, view.plan(report), as_json)
    elif not wait:
        return say(job, job["id"], as_json)
    see_through(server, job, as_json)


@overrides_argument
@files_option
@server_options
def show(recipe: dict[str, Any], settings: list[Setting], data: Path | None, as_json: bool) -> None:
    """Print the value and origin of each option. KEY=VALUE sets any option."""
    from batchyard import config

    rows = [(config.name_of(setting.keys), setting.value, setting.origin) for setting in settings]
    documents = [{"key": key, "value": value, "origin": origin._asdict()} for key, value, origin in rows]
    missing = [name for name in recipe["options"].get("required", []) if all(name != key for key, _, _ in rows)]
    shown: list[tuple[Any, ...]] = [(key, json.dumps(value, ensure_ascii=False), origin) for key, value, origin in rows]
    shown += [(name, None, "has to be set") for name in missing]
    say(documents, lines_of(["key", "value", "origin"], shown), as_json)


def _outlook(server: ApiClient, source: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    with uploaded(server, server.upload(source, "user_data"), keep=False) as file_id:
        return server.create_job(dry_run=True, **body, input_file_id=file_id)


def report_tables(server: ApiClient, job: dict[str, Any]) -> str:
    """Return the tables of a job's report."""
    files = {artifact["name"]: artifact["file_id"] for artifact in job["batchyard"]["artifacts"]}
    blocks = json.loads(server.content(files[VIEW])) if VIEW in files else []
    return "\n\n".join(
        f"{block['title']}\n{lines_of(block['columns'], block['rows'])}" for block in blocks if block["kind"] == "table"
    )


def _body(recipe: Mapping[str, Any], options: Mapping[str, Any], window: str, **fields: Any) -> dict[str, Any]:
    return {"recipe": recipe["name"], "options": options, "completion_window": window, **fields}


def _created(server: ApiClient, source: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    with uploaded(server, server.upload(source, "user_data")) as file_id:
        job = server.create_job(**body, input_file_id=file_id)
    for warning in job["batchyard"]["warnings"]:
        complain(f"warning: {warning['message']}")
    note(server.page(job["id"]))
    return job
