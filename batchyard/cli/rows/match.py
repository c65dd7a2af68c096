"""`batchyard match`: the pairs of rows of two files to which a model says yes."""

import warnings
from pathlib import Path
from typing import Any

import click

from batchyard.cli import requests
from batchyard.cli.options import stack_options
from batchyard.cli.rows.command import RowsCommand, output_options


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
@requests.null_values_option
@requests.window_option
@click.option("--again", is_flag=True, help="Ignore earlier answers and recompute.")
@stack_options
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
