"""`batchyard map`: a prompt for each row of a file, and the file with the answers in columns of their own."""

import json
from pathlib import Path
from typing import Any

import click

from batchyard.cli import requests
from batchyard.cli.rows.command import RowsCommand, common_options, source_and_output
from batchyard.errors import ConfigurationError


@click.command("map")
@source_and_output(".csv, .tsv, .jsonl or .parquet")
@click.option(
    "-t",
    "--template",
    required=True,
    help="Prompt of each row: 'Translate {text}', or all columns: {*}. Write {{ and }} for braces.",
)
@click.option("--system", help="Template of the system message.")
@click.option("--temperature", type=float, help="Temperature; 0 gives the likeliest answer.")
@click.option("--max-tokens", type=click.IntRange(1), help="Maximum tokens of an answer.")
@click.option("--max-completion-tokens", type=click.IntRange(1), help="For models that refuse max_tokens.")
@click.option(
    "--schema",
    type=requests.INPUT_FILE,
    help="JSON schema of the answers; its properties become columns.",
)
@click.option("--cascade", metavar="MODEL", help="Smaller model, which answers the rows on which it agrees.")
@click.option("--agree", type=float, help="With --cascade: minimum share of rows with the answer of --model [0.95].")
@click.option("--confidence", type=float, help="With --cascade: minimum probability of reaching that share [0.95].")
@click.option("--truth", metavar="COLUMN", help="With --cascade: column with known answers, to measure against.")
@click.option("--finish-reason", is_flag=True, help="Add the column finish_reason.")
@common_options
def map_(template: str, schema: Path | None, finish_reason: bool, **shared: Any) -> None:
    """Ask a model about each row of a table.

    FILE is .csv, .tsv, .jsonl, .parquet or .txt; text may be compressed (.gz, .zst, .bz2). The output has all columns
    of FILE plus answer, error and tokens. A row with an empty cell in a column of the template is not sent. Rows are
    held in memory: 50,000 short ones take about 0.2 GB.

    If no server is running, the command starts a local stack and stops it afterwards. To resume after Ctrl-C or a
    crash, run the same command again: nothing is recomputed.
    """
    from batchyard.client import asking
    from batchyard.client.answers import Structure
    from batchyard.client.map import map

    sampling = {name: shared.pop(name) for name in ("system", "temperature", "max_tokens", "max_completion_tokens")}
    cascade = {name: shared.pop(name) for name in ("cascade", "agree", "confidence", "truth")}
    asking.targets(**cascade)  # before a server starts
    command = RowsCommand(**shared)
    try:
        form = None if schema is None else json.loads(schema.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{schema} is no JSON schema: {error}") from error

    def ask(table: Any, options: dict[str, Any]) -> Any:
        how = {**sampling, **cascade, **options, "schema": form, "finish_reason": finish_reason}
        return map(table, template, details=True, name=command.name, **how)

    reasons = ["finish_reason"] if finish_reason else []
    reasons += ["answered_by", "confidence"] if cascade["cascade"] else []
    command.add_columns([*(Structure(form).columns if form else ["answer"]), *reasons], ask)
