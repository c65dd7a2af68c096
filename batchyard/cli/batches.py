"""Commands on a server's batches: submit, status, results, cancel, pause, resume, delete, set, retry, list, models."""

import itertools
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import click

from batchyard.cli import completion, requests, view
from batchyard.cli.options import Said, connect, on_server, server_options
from batchyard.cli.output import complain, note, say
from batchyard.cli.watch import check_success, interruptible, print_results, print_status, see_through, warn
from batchyard.client.api import ApiClient, uploaded
from batchyard.errors import ConfigurationError
from batchyard.statuses import TERMINAL, Status


@click.command()
@click.argument("file", metavar="FILE|URL", type=requests.Source())
@click.option("--each", is_flag=True, help="With a URL: create one batch per object and print all ids.")
@requests.batch_options
@click.option("-m", "--model", shell_complete=completion.models, help="Model for prompts.")
@requests.prompt_options
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Metadata of the batch; up to 16 pairs.")
@click.option("--dry-run", is_flag=True, help="Show the number of requests and the ETA, and create nothing.")
@click.option("--wait", is_flag=True, help="Wait for the end and show progress.")
@server_options
def submit(
    file: Path | str,
    each: bool,
    model: str | None,
    dry_run: bool,
    wait: bool,
    data: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Upload a file of requests or prompts and create a batch.

    Prints the batch's id. FILE holds requests (.jsonl), or prompts: .txt with one per line, .prompts with `---` between
    them, or .csv, .tsv, .parquet or .jsonl with a column `prompt` or a --template. Text may be compressed (.gz, .zst,
    .bz2).

    URL is an object with requests, or a folder of them, in a bucket that the server may read, such as s3://bucket/in/.
    All objects become one batch unless you pass --each.
    """
    source = None if isinstance(file, str) else file
    fields = requests.batch_fields(options, source)
    if source is None:
        if dry_run or wait or any(value is not None for value in (model, *options.values())):
            raise click.UsageError("a URL goes without --dry-run, --wait and options of prompts")
        server = connect(data)
        if each:
            files = server.call("POST", "/imports", {"url": file, "purpose": "batch", "join": False})["data"]
            batches = [server.create(one["id"], **fields) for one in files]
        else:
            batches = [server.create(input_url=file, **fields)]
        return say(batches if each else batches[0], "\n".join(batch["id"] for batch in batches), as_json)
    if each:
        raise click.UsageError("--each goes with a URL")
    prompts = requests.becomes_requests(source, {"model": model, **options})
    server = connect(data)
    form = requests.start_form(fields, {"model": model, **options})
    if dry_run:
        outlook = server.start(source, form, dry_run=True)
        for warning in outlook.get("warnings", ()):
            complain(f"warning: {warning}")
        return say(outlook, view.outlook(outlook), as_json)
    with interruptible("`batchyard list` tells whether there is a batch already"):
        batch = requests.started(server, source, form) if prompts else requests.created(server, source, fields)
    note(server.page(batch["id"]))
    if wait:
        return see_through(server, batch, as_json)
    warn(batch)
    say(batch, batch["id"], as_json)


@click.command()
@click.argument("file", metavar="FILE", type=requests.INPUT_FILE)
@click.option("--rows", default=100, show_default=True, type=click.IntRange(1, 1_000), help="Size of the sample.")
@requests.batch_options
@click.option(
    *("-m", "--model", "models"),
    multiple=True,
    shell_complete=completion.models,
    help="Model that answers; repeat it to compare models on the same sample.",
)
@requests.prompt_options
@server_options
def plan(file: Path, rows: int, models: tuple[str, ...], data: Path | None, as_json: bool, **options: Any) -> None:
    """Answer a random sample of a file, and forecast the rest.

    The batch pauses after the sample. `batchyard resume BATCH` answers the rest and recomputes nothing. `batchyard
    cancel BATCH` keeps only the sample. Each of several models has its own batch.
    """
    from batchyard.client import asking  # imports pydantic

    fields = requests.batch_fields(options, file) | {"plan": {"rows": rows}}
    prompts = requests.becomes_requests(file, options)
    server, batches = connect(data), []
    chosen: list[str | None] = [*dict.fromkeys(models)]
    for name in models:
        asking.served(server, name, fields["endpoint"])
    for model in chosen or [None]:
        form = requests.start_form(fields, {"model": model, **options})
        batch = requests.started(server, file, form) if prompts else requests.created(server, file, fields, model)
        note(server.page(batch["id"]))
        batches.append(batch)
    with interruptible(f"the sample keeps running; `batchyard status {batches[0]['id']}` shows its progress"):
        batches = [asking.sampled(server, batch) for batch in batches]
    unfit = [batch for batch in batches if batch["status"] in TERMINAL - {"completed"}]
    if unfit or (len(batches) == 1 and batches[0]["status"] in TERMINAL):
        batch = (unfit or batches)[0]
        say(batch, view.facts(batch), as_json)
        return check_success(batch)
    reports = [asking.report(server, batch) for batch in batches]
    if len(reports) == 1:
        say(reports[0], view.plan(reports[0]), as_json)
    else:
        say(reports, view.plans(reports), as_json)


@click.command()
@click.argument("batch_id", metavar="[BATCH]", required=False, shell_complete=completion.batches)
@click.option("--watch", "live", is_flag=True, help="Refresh until everything has ended.")
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1, 100), help="Maximum number to list.")
@server_options
def status(batch_id: str | None, live: bool, limit: int, data: Path | None, as_json: bool) -> None:
    """Show the progress of a batch, or of the newest batches."""
    print_status(connect(data), "batch", batch_id, limit, live=live, as_json=as_json)


@click.command()
@click.argument("batch_id", metavar="BATCH", shell_complete=completion.batches)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the answers [standard output].")
@click.option("--errors", type=click.Path(path_type=Path), help="File for the failed requests.")
@click.option("--follow", is_flag=True, help="Print answers as they arrive, until the batch ends.")
@click.option("--retries", "merged", is_flag=True, help="Include the answers of retries, in input order; needs -o.")
@server_options
def results(
    batch_id: str,
    output: Path | None,
    errors: Path | None,
    follow: bool,
    merged: bool,
    data: Path | None,
    as_json: bool,
) -> None:
    """Fetch the answers of a batch, and optionally its errors."""
    server = connect(data)
    if follow:
        if output is not None or errors is not None or as_json:
            raise click.UsageError("--follow prints to standard output, and goes with no other option")
        with interruptible("the batch goes on; the same command prints all of it again"):
            return check_success(print_results(server, batch_id, live=True))
    batch = server.batch(batch_id)
    if merged and output is None:
        raise click.UsageError("--retries needs -o")
    if merged and output is not None:
        from batchyard.client import retries

        chain = retries.chain_of(server, batch)
        retries.write(server, chain, output, errors)
        if as_json:
            click.echo(json.dumps(chain[-1]))
        return check_success(chain[-1], retries.counts(chain))
    if batch["output_file_id"] is None and batch["error_file_id"] is None:
        ended = f"and has no results; `batchyard status {batch_id}` tells why"
        pending = ": its files come at the end; --follow prints answers as they come"
        what = f" {ended}" if batch["status"] in TERMINAL else pending
        raise ConfigurationError(f"batch {batch_id} is {batch['status']}{what}")
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
    check_success(batch)


@click.command()
@click.argument("batch_id", metavar="BATCH", shell_complete=completion.batches)
@on_server
def cancel(server: ApiClient, batch_id: str) -> Said:
    """Cancel a batch. Finished answers are kept."""
    batch = server.control(batch_id, "cancel")
    return batch, f"{batch['id']} is {batch['status']}"


@click.command()
@click.argument("name", metavar="BATCH|JOB", shell_complete=completion.batches)
@on_server
def pause(server: ApiClient, name: str) -> Said:
    """Pause a batch or job. Its deadline does not move."""
    paused = server.control(name, "pause")
    return paused, f"{name} {view.paused(paused)}; `batchyard resume {name}` lets it go on"


@click.command()
@click.argument("name", metavar="BATCH|JOB", shell_complete=completion.batches)
@on_server
def resume(server: ApiClient, name: str) -> Said:
    """Resume a paused batch or job."""
    return server.control(name, "resume"), f"{name} goes on"


@click.command()
@click.argument("name", metavar="BATCH|JOB", shell_complete=completion.batches)
@on_server
def delete(server: ApiClient, name: str) -> Said:
    """Delete an ended batch or job with its files, for good."""
    server.delete(name)
    return {"id": name, "deleted": True}, f"{name} is deleted"


CHANGES = {"deadline": "completion_window", "priority": "priority", "name": "name", "description": "description"}
"""What `set` can change, and what the API calls it."""


@click.command("set")
@click.argument("batch_id", metavar="BATCH", shell_complete=completion.batches)
@click.argument("changes", metavar="NAME=VALUE...", nargs=-1, required=True)
@on_server
def set_(server: ApiClient, batch_id: str, changes: tuple[str, ...]) -> Said:
    """Change the deadline, priority, name or description of a batch.

    deadline=12h counts from the batch's creation. priority is background, low, normal or high. An empty name or
    description removes it.
    """
    values = requests.pairs(changes, "NAME=VALUE")
    unknown = next((name for name in values if name not in CHANGES), None)
    if unknown is not None:
        raise click.UsageError(f"no '{unknown}' to set; there are: {', '.join(CHANGES)}")
    body = {CHANGES[name]: value or None for name, value in values.items()}
    batch = server.call("POST", f"/batches/{batch_id}", body)
    ours = batch["batchyard"]
    return batch, f"{batch_id} ({ours['name']}): {view.due(batch)}, priority {ours['priority']}"


@click.command()
@click.argument("batch_id", metavar="BATCH", shell_complete=completion.batches)
@click.option(
    "--fixed",
    type=requests.INPUT_FILE,
    help="File of corrected requests, matched by custom_id or by their key `line`.",
)
@on_server
def retry(server: ApiClient, batch_id: str, fixed: Path | None) -> Said:
    """Create a new batch of the requests without an answer.

    Prints the new batch's id. `batchyard results BATCH --retries -o FILE` writes the answers of both.
    """
    with nullcontext() if fixed is None else uploaded(server, server.upload(fixed)) as file_id:
        batch = server.retry(batch_id, fixed_file_id=file_id)
    return batch, batch["id"]


@click.command("list")
@click.option("--status", type=click.Choice(get_args(Status)), metavar="STATUS", help="List only this status.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="Maximum number to list.")
@on_server
def list_(server: ApiClient, status: str | None, limit: int) -> Said:
    """List the batches of the project, newest first."""
    batches = list(itertools.islice(server.batches(status=status), limit))
    return batches, view.overview(batches)
