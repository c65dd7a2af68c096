"""`batchyard map`, `filter` and `match`: prompts and questions about the rows of files, asked in chats."""

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import click

from batchyard.cli import requests
from batchyard.cli.rows.command import RowsCommand, common_options, output_options, shared_options, source_and_output
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
@click.option("--cascade", metavar="MODEL", help="Smaller model for rows on which it agrees, or several: nano,mini.")
@click.option(
    "--agree",
    metavar="SHARE",
    help="With --cascade: minimum share of rows with the answer of --model [0.95]; with --by a range: 0.9..0.98.",
)
@click.option("--by", metavar="TIME", help="With --cascade: when to be done, such as 07:00. Lowers --agree if need be.")
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
    cascade = {name: shared.pop(name) for name in ("cascade", "agree", "by", "confidence", "truth")}
    asking.targets(**cascade)  # before a server starts
    command = RowsCommand(**shared)
    try:
        form = None if schema is None else json.loads(schema.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{schema} is no JSON schema: {error}") from error
    how = {**sampling, **cascade, "schema": form, "finish_reason": finish_reason, "name": command.name}
    ask = partial(map, template=template, details=True, **how)
    reasons = ["finish_reason"] if finish_reason else []
    reasons += ["answered_by", "confidence"] if cascade["cascade"] else []
    command.add_columns([*(Structure(form).columns if form else ["answer"]), *reasons], ask)


@click.command("filter")
@source_and_output(".csv, .tsv, .jsonl or .parquet")
@click.option("-t", "--template", required=True, help="Question about each row: 'Is this about billing? {text}'.")
@click.option("--system", help="System message in place of the default one, which asks for yes or no.")
@click.option(
    "--cascade", metavar="MODEL", help="Smaller model, or several, to decide as many rows as the targets allow."
)
@click.option("--precision", type=float, help="With --cascade: minimum share of --model's yes in the output [0.95].")
@click.option("--recall", type=float, help="With --cascade: minimum share of --model's yes that is found [0.95].")
@click.option("--confidence", type=float, help="With --cascade: minimum probability of reaching both targets [0.95].")
@click.option("--truth", metavar="COLUMN", help="With --cascade: column with known answers, to measure against.")
@common_options
def filter_(template: str, **shared: Any) -> None:
    """Keep the rows of a table to which a model says yes.

    The output has these rows with all columns of FILE plus answer, answered_by, confidence (the probability of yes),
    error and tokens. With --cascade, a smaller model decides the rows it is sure about. Precision and recall are
    measured against the answers of --model, and hold with probability --confidence.

    FILE, the server and resuming work as in `batchyard map`.
    """
    from batchyard.client import asking
    from batchyard.client.filter import YES, filter

    system = shared.pop("system")
    cascade = {name: shared.pop(name) for name in ("cascade", "precision", "recall", "confidence", "truth")}
    asking.targets(**cascade)  # before a server starts
    ask = partial(filter, template=template, details=True, system=system, **cascade)
    RowsCommand(**shared).add_columns(["answer", "answered_by", "confidence"], ask, keep=("answer", YES))


@click.command("match")
@click.argument("source", metavar="LEFT", type=requests.INPUT_FILE)
@click.argument("other", metavar="RIGHT", type=requests.INPUT_FILE)
@output_options(".csv, .tsv, .jsonl or .parquet")
@click.option("-t", "--template", required=True, help="Question: 'Same company? {left.name} / {right.name}'.")
@click.option("--system", help="System message in place of the default one, which asks for yes or no.")
@click.option("--embed", metavar="MODEL", help="Embedding model [that of --cascade, or the only one].")
@click.option("--cascade", metavar="MODEL", help="Smaller model, or embedding model, for the pairs it is sure about.")
@click.option("--recall", type=float, help="Share of all matches that are found [0.95].")
@click.option("--precision", type=float, help="With --cascade: share of the output to which --model says yes [0.95].")
@click.option("--confidence", type=float, help="Probability that both are reached [0.95].")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Candidates of each row.")
@click.option("--sample", type=click.IntRange(0), default=1000, show_default=True,
              help="Random other pairs for --model, to bound the matches among them.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of this sample.")
@shared_options
def match_(other: Path, template: str, embed: str | None, **shared: Any) -> None:
    """Find the pairs of rows of two tables to which a model says yes.

    It asks about the pairs with the most similar embeddings and a random sample of the others, never about all. The
    output has all columns of both files, as left.name and right.name, plus similarity, answered_by and confidence. With
    --cascade, a smaller model decides most pairs. Standard error has the recall that the sample certifies.

    The files, the server and resuming work as in `batchyard map`.
    """
    from batchyard.client import tables
    from batchyard.client.asking import AnswerWarning
    from batchyard.client.match import Matching, matched, targets

    how = {"embed": embed, **{name: shared.pop(name) for name in ("top", "sample", "seed")}}
    system, cascade = shared.pop("system"), shared.pop("cascade")
    aims = targets(cascade, *(shared.pop(name) for name in ("recall", "precision", "confidence")))
    command = RowsCommand(**shared)
    tables.check_output(command.output)
    requests.check_writable(command.output)
    left, right = (tables.cells(file, tables.read(file), command.null_values) for file in (command.source, other))
    with command.server() as server, warnings.catch_warnings():
        warnings.simplefilter("ignore", AnswerWarning)  # the report has the reasons
        asked = {**command.options(server), "progress": True, "system": system}
        made = matched(left, right, Matching(template, asked.pop("model"), cascade, aims, asked), **how)
        simulated = command.simulated(server)
    columns, kept = made.columns(), made.report["matches"]
    tables.write(command.output, made.frames[0].apart(columns) if kept else tables.empty([*columns]))
    command.report([answer["error"] for answer in made.answers], simulated, None, kept, made.report)
