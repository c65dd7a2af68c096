"""`batchyard embed`, `classify`, `rerank` and `transcribe`: vectors, labels, rankings and texts for rows of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import requests
from batchyard.cli.rows.command import RowsCommand, common_options, source_and_output

if TYPE_CHECKING:
    from batchyard.client.classify import By


@click.command()
@source_and_output(".parquet with all columns, or .npy with the vectors alone")
@click.option("-t", "--template", required=True, help="What has a vector: a column, or '{title}: {text}', '{*}'.")
@click.option("--normalize", is_flag=True, help="Make the length of vectors 1.")
@click.option("--dtype", type=click.Choice(("float32", "float16")), default="float32", show_default=True)
@click.option("--dimensions", type=click.IntRange(1), help="The length of vectors, for models that can shorten them.")
@common_options
def embed(template: str, normalize: bool, dtype: str, dimensions: int | None, **shared: Any) -> None:
    """Write a vector for each row of FILE.

    In .parquet stand all columns of FILE, and embedding, error and tokens. In .npy row n is the vector of row n of
    FILE; what has none is NaN. Memory does not grow with FILE, but for some bytes a row.

    FILE, the server and the same command again are those of `batchyard map`.
    """
    from batchyard.client import asking, tables, vector_files
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
@click.option("-t", "--template", required=True, help="What is classified: '{text}', '{*}'. {{ and }} are braces.")
@click.option("-l", "--label", "labels", multiple=True, help="A label; given for each. A classifier needs none.")
@click.option("--system", help="The system message of a chat, in place of one with the labels.")
@click.option("--by", type=click.Choice(("chat", "decision")), default="chat", show_default=True,
              help="What a model without labels of its own is asked.")  # fmt: skip
@common_options
def classify(template: str, labels: tuple[str, ...], system: str | None, by: By, **shared: Any) -> None:
    """Write a label for each row of FILE: all its columns and label, probability, probabilities, error and tokens.

    A model that is a classifier has labels of its own; any other is asked in a chat with the labels, or by a decision
    of /v1/systemone. The probability is that of the label among the labels,
    and probabilities has those of all.

    FILE, the server and the same command again are those of `batchyard map`.
    """
    from batchyard.client.classify import classify

    def ask(table: Any, options: dict[str, Any]) -> Any:
        return classify(table, template, labels=labels or None, system=system, by=by, details=True, **options)

    RowsCommand(**shared).add_columns(["label", "probability", "probabilities"], ask)


@click.command()
@source_and_output(".jsonl or .parquet")
@click.option("--query", default="query", show_default=True, help="The column with the query.")
@click.option("--documents", default="documents", show_default=True, help="The column with a list of documents.")
@click.option("--top", type=click.IntRange(1), help="How many documents of each query are written [all].")
@common_options
def rerank(query: str, documents: str, top: int | None, **shared: Any) -> None:
    """Write the order of each row's documents: all columns of FILE and ranking, error and tokens.

    A ranking is a list of objects with index (in the row's list, from 0), score and document, the best first.

    FILE, the server and the same command again are those of `batchyard map`.
    """
    from batchyard.client.rerank import rank_rows

    def ask(table: Any, options: dict[str, Any]) -> Any:
        return rank_rows(table, query, documents, top=top, **options)

    RowsCommand(**shared).add_columns(["ranking"], ask)


@click.command()
@source_and_output(".jsonl, .csv, .tsv or .parquet", folder=True)
@click.option("--audio", metavar="COLUMN", help="The column with the audio, if SOURCE is a table.")
@click.option("--translate", is_flag=True, help="Translate into English.")
@click.option("--language", help="Of all audio, such as de. By default the model detects it, if it can.")
@click.option("--times", is_flag=True, help="Write language, duration and segments, too, for models that tell them.")
@click.option("--prompt", help="A text that shows the style, and names that are said.")
@common_options
def transcribe(audio: str | None, times: bool, **shared: Any) -> None:
    """Write what is said in each file of SOURCE, a folder: its name and text, error and tokens.

    Files of folders in it count, hidden ones do not. A file that is no audio, too long or broken has an error, and
    harms no other. SOURCE may also be a table, as `batchyard map` takes it, with audio in the column --audio; then all
    its columns are written.

    The server and the same command again are those of `batchyard map`.
    """
    from batchyard.client.transcribe import FILE, TEXT, TIMES, listing, transcribe

    options = {name: shared.pop(name) for name in ("translate", "language", "prompt")}
    options |= {"times": times, "details": True}
    command = RowsCommand(**shared)
    names = [TEXT, *(TIMES if times else ())]
    if not command.source.is_dir():
        return command.add_columns(names, lambda table, how: transcribe(table, audio, **options, **how))

    def ask(_table: Any, how: dict[str, Any]) -> Any:
        return [
            {name: value for name, value in row.items() if name != FILE}
            for row in transcribe(command.source, **options, **how)
        ]

    command.add_columns(names, ask, [{FILE: str(name)} for name in listing(command.source)])
