"""`batchyard embed`, `classify`, `rerank` and `transcribe`: vectors, labels, rankings and texts for rows of a file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import requests
from batchyard.cli.rows.command import RowsCommand, common_options, source_and_output

if TYPE_CHECKING:
    from batchyard.client.classify import By


@click.command()
@source_and_output(".parquet with all columns, or .npy with vectors only")
@click.option("-t", "--template", required=True, help="Text to embed: a column or '{title}: {text}'.")
@click.option("--normalize", is_flag=True, help="Scale vectors to length 1.")
@click.option("--dtype", type=click.Choice(("float32", "float16")), default="float32", show_default=True)
@click.option("--dimensions", type=click.IntRange(1), help="Number of dimensions, for models that support it.")
@common_options
def embed(template: str, normalize: bool, dtype: str, dimensions: int | None, **shared: Any) -> None:
    """Compute an embedding for each row of a table.

    A .parquet file gets all columns of FILE plus embedding, error and tokens. In a .npy file, row n is the vector of
    row n of FILE, or NaN if it has none. Memory use hardly grows with FILE.

    FILE, the server and resuming work as in `batchyard map`.
    """
    from batchyard.cli.rows import vector_files
    from batchyard.client import asking, tables
    from batchyard.client.asking import CallOptions
    from batchyard.client.embed import Vectors, send, text_template

    command = RowsCommand(**shared)
    vector_files.check_output(command.output)
    requests.check_writable(command.output)
    columns = tables.columns(command.source)
    if command.output.suffix == ".parquet":
        command.check_new(vector_files.COLUMNS, columns)
    every_row = tables.stream(command.source, columns, command.null_values)
    text = asking.ordered(text_template(template, columns), every_row, say=True)
    with Vectors(dtype, normalize) as vectors:
        with command.server() as server:
            how = CallOptions(window=command.window, again=command.again, server=server, name=command.name)
            rows = tables.stream(command.source, text.needed(columns), command.null_values)
            send(rows, text, vectors, how, command.model, dimensions=dimensions)
            simulated = command.simulated(server)
        vector_files.write(command.output, command.source, vectors, command.prefix)
        command.report(vectors.errors, simulated)


@click.command()
@source_and_output(".csv, .tsv, .jsonl or .parquet")
@click.option("-t", "--template", required=True, help="Text to classify: '{text}', or all columns: '{*}'.")
@click.option("-l", "--label", "labels", multiple=True, help="Label; repeat for each one. A classifier needs none.")
@click.option("--system", help="System message in place of the default one with the labels.")
@click.option("--by", type=click.Choice(("chat", "decision")), default="chat", show_default=True,
              help="How to ask a model without labels of its own.")  # fmt: skip
@click.option("--cascade", metavar="MODEL", help="Smaller model for rows on which it agrees, or several: a,b.")
@click.option("--agree", type=float, help="With --cascade: minimum share of rows with the label of --model [0.95].")
@click.option("--confidence", type=float, help="With --cascade: minimum probability of reaching that share [0.95].")
@click.option("--truth", metavar="COLUMN", help="With --cascade: column with known labels, to measure against.")
@common_options
def classify(template: str, labels: tuple[str, ...], system: str | None, by: By, **shared: Any) -> None:
    """Label each row of a table.

    The output has all columns of FILE plus label, probability, probabilities, error and tokens. A classifier has its
    own labels. Any other model chooses among yours, in a chat or by a decision of /v1/systemone. `probability` is that
    of the chosen label, and `probabilities` has those of all labels. With --cascade, answered_by and confidence (the
    smaller model's) replace both.

    FILE, the server and resuming work as in `batchyard map`.
    """
    from batchyard.client import asking
    from batchyard.client.classify import classify

    cascade = {name: shared.pop(name) for name in ("cascade", "agree", "confidence", "truth")}
    asking.targets(**cascade)  # before a server starts
    ask = partial(classify, template=template, labels=labels or None, system=system, by=by, details=True, **cascade)
    details = ["answered_by", "confidence"] if cascade["cascade"] else ["probability", "probabilities"]
    RowsCommand(**shared).add_columns(["label", *details], ask)


@click.command()
@source_and_output(".jsonl or .parquet")
@click.option("--query", default="query", show_default=True, help="Column with the query.")
@click.option("--documents", default="documents", show_default=True, help="Column with the list of documents.")
@click.option("--top", type=click.IntRange(1), help="Number of documents to keep per query [all].")
@common_options
def rerank(query: str, documents: str, top: int | None, **shared: Any) -> None:
    """Rank the documents of each row by relevance to its query.

    The output has all columns of FILE plus ranking, error and tokens. A ranking is a list of objects, best first, with
    index (in the row's list, from 0), score and document.

    FILE, the server and resuming work as in `batchyard map`.
    """
    from batchyard.client.rerank import rank_rows

    ask = partial(rank_rows, query=query, documents=documents, top=top)
    RowsCommand(**shared).add_columns(["ranking"], ask)


@click.command()
@source_and_output(".jsonl, .csv, .tsv or .parquet", folder=True)
@click.option("--audio", metavar="COLUMN", help="Column with the audio, if SOURCE is a table.")
@click.option("--translate", is_flag=True, help="Translate into English.")
@click.option("--language", help="Language of the audio, such as de [detected by the model].")
@click.option("--times", is_flag=True, help="Add language, duration and segments, if the model returns them.")
@click.option("--prompt", help="Text that shows the style and spells names in the audio.")
@common_options
def transcribe(audio: str | None, times: bool, **shared: Any) -> None:
    """Transcribe the audio files of a folder or a table.

    SOURCE is a folder, searched recursively without hidden files; the output has file, text, error and tokens. It may
    also be a table with the audio in the column --audio; then the output keeps all columns. A file that is broken, too
    long or not audio gets an error of its own.

    The server and resuming work as in `batchyard map`.
    """
    from batchyard.client.transcribe import FILE, TEXT, TIMES, listing, transcribe

    options = {name: shared.pop(name) for name in ("translate", "language", "prompt")}
    options |= {"times": times, "details": True}
    command = RowsCommand(**shared)
    names = [TEXT, *(TIMES if times else ())]
    if not command.source.is_dir():
        return command.add_columns(names, partial(transcribe, audio=audio, **options))

    def ask(_table: Any, **how: Any) -> Any:
        return [
            {name: value for name, value in row.items() if name != FILE}
            for row in transcribe(command.source, **options, **how)
        ]

    command.add_columns(names, ask, [{FILE: str(name)} for name in listing(command.source)])
