"""`batchyard filter`: the rows of a file to which a model says yes."""

from typing import Any

import click

from batchyard.cli.rows.command import RowsCommand, common_options, source_and_output


@click.command("filter")
@source_and_output(".csv, .tsv, .jsonl or .parquet")
@click.option("-t", "--template", required=True, help="Question about each row: 'Is this about billing? {text}'.")
@click.option("--system", help="System message in place of the default one, which asks for yes or no.")
@click.option("--cascade", metavar="MODEL", help="Smaller model, which decides as many rows as the targets allow.")
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

    def ask(table: Any, options: dict[str, Any]) -> Any:
        return filter(table, template, details=True, system=system, **cascade, **options)

    RowsCommand(**shared).add_columns(["answer", "answered_by", "confidence"], ask, keep=("answer", YES))
