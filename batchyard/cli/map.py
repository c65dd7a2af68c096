"""`batchyard map`: a prompt for each row of a file, and the file with the answers in columns of their own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from batchyard.cli import background, completion, requests
from batchyard.cli.options import data_option, load_settings, models_option
from batchyard.cli.output import json_option, plain
from batchyard.cli.watch import Unsuccessful, interruptible
from batchyard.client import resume
from batchyard.errors import ConfigurationError
from batchyard.wording import cut

REASONS = 3


@click.command("map")
@click.argument("source", metavar="FILE", type=requests.LocalPath(path_type=Path, exists=True, dir_okay=False))
@click.option("-t", "--template", required=True, help="The prompt of a row: 'Translate {text}'. {{ and }} are braces.")
@click.option("-m", "--model", required=True, shell_complete=completion.models, help="The model that answers.")
@click.option(
    *("-o", "--output"),
    required=True,
    type=requests.LocalPath(path_type=Path, dir_okay=False),
    help="Where the rows go with their answers: .csv, .tsv, .jsonl or .parquet.",
)
@click.option("--system", help="A template of the system message.")
@click.option("--temperature", type=float, help="0: the likeliest answer.")
@click.option("--max-tokens", type=click.IntRange(1), help="The longest answer.")
@click.option("--max-completion-tokens", type=click.IntRange(1), help="The same, for models that refuse max_tokens.")
@click.option(
    "--schema",
    type=requests.LocalPath(path_type=Path, exists=True, dir_okay=False),
    help="A JSON schema of an object: answers have this form, and its properties are columns.",
)
@click.option(
    "--prefix", default="", help="Before the names of the new columns, where the file has such columns already."
)
@requests.null_values_option
@requests.window_option
@click.option("--again", is_flag=True, help="Compute everything anew, also where the same was asked before.")
@data_option
@models_option
@json_option
def map_(
    source: Path,
    template: str,
    model: str,
    output: Path,
    system: str | None,
    temperature: float | None,
    max_tokens: int | None,
    max_completion_tokens: int | None,
    schema: Path | None,
    prefix: str,
    null_values: tuple[str, ...],
    window: str,
    again: bool,
    data: Path | None,
    models: Path | None,
    as_json: bool,
) -> None:
    """Ask a model about each row of FILE; write all its columns and answer, error and tokens.

    FILE is .csv, .tsv, .jsonl, .parquet or .txt; text may be compressed (.gz, .zst, .bz2). A row with an empty cell
    in a column of the template is not sent. The rows are held in memory: 50,000 short ones take about 0.2 GB.

    Starts a local stack and ends it afterwards, unless one runs on --data already or BATCHYARD_URL names a server.
    The same command again, also after Ctrl-C or a crash, goes on: nothing that was answered is computed twice.
    """
    from batchyard.client import frames, tables
    from batchyard.client.answers import Structure
    from batchyard.client.map import DETAILS, is_unsent, map, served

    settings = load_settings(data=data, models=models)
    tables.check_output(output)
    requests.check_writable(output)
    form = None if schema is None else _schema(schema)
    table = tables.read(source)
    new = [prefix + name for name in (*(Structure(form).columns if form else ["answer"]), *DETAILS)]
    if clash := [name for name in new if name in frames.of(table).columns]:
        raise ConfigurationError(
            f"{source} has a column {clash[0]} already; --prefix gives the new columns other names"
        )
    with (
        interruptible(resume.remedy(again)),
        background.server(settings.data, settings.models) as server,
    ):
        simulated = served(server, model)["batchyard"]["simulated"]
        answers = map(
            tables.cells(source, table, null_values),
            template,
            model=model,
            system=system,
            temperature=temperature,
            max_tokens=max_tokens,
            max_completion_tokens=max_completion_tokens,
            schema=form,
            window=window,
            again=again,
            details=True,
            server=server,
            name=source.name.partition(".")[0] or "map",
        )
    tables.write(output, tables.beside(table, answers, prefix))
    report = {"simulated": simulated, "output": str(output)}
    _report(frames.of(answers).cells("error"), is_unsent, report, as_json)


def _schema(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} is no JSON schema: {error}") from error


def _report(errors: Sequence[str | None], unsent: Callable[[str], bool], report: dict[str, Any], as_json: bool) -> None:
    """Say how many rows have an answer, and why others have none. Raises Unsuccessful."""
    reasons = Counter(error for error in errors if error is not None)
    answered = len(errors) - reasons.total()
    if as_json:
        click.echo(json.dumps({"rows": len(errors), "answered": answered, "errors": reasons, **report}))
    else:
        simulated = " (simulated)" if report["simulated"] else ""
        click.echo(f"{answered} of {len(errors)} rows answered{simulated}: {report['output']}")
        for reason, count in reasons.most_common(REASONS):
            click.echo(plain(f"{count} without an answer: {cut(reason, 150)}"), err=True)
    failed = sum(count for reason, count in reasons.items() if not unsent(reason))
    if failed:
        raise Unsuccessful(f"{failed} of {len(errors)} rows failed; the column error of {report['output']} tells why")
