"""Downloads: the requests of a batch with their answers as jsonl, csv or parquet, PIECE rows at once in memory."""

import csv
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchyard import json_lines
from batchyard.endpoints import output_lines
from batchyard.tables.spreadsheets import harmless
from results.filter import Filter
from results.opening import open_rows
from results.rows import Entry, Rows
from results.search import Raw
from results.storage import Storage
from results.table import SCHEMA, record, text_of
from store import batches
from store.formats.results import ResultRow, row_of
from store.records import Batch

PIECE = 500
COLUMNS = [field.name for field in SCHEMA if not pa.types.is_list(field.type)]
"""Of csv: a cell holds no list."""

Rowed = tuple[Entry, Raw]


def rows(storage: Storage, batch: Batch, chosen: Filter, stack: ExitStack, *, merged: bool) -> Iterator[Rowed]:
    """Return the requests that a filter leaves; with `merged`, with good answers of retries. Raises as `open_rows`."""
    rows = stack.enter_context(open_rows(storage, batch))
    if not merged:
        return rows.each(chosen)
    retries: dict[str, Batch] = {}  # of the batch, or of one that retries it; the oldest has the lowest id
    pending = [batch.id]
    with storage.database.read() as session:
        while pending:
            ids = [id_ for each in batches.retries(session, pending).values() for id_ in each if id_ not in retries]
            retries |= {id_: batches.get(session, batch.project_id, id_) for id_ in ids}
            pending = ids
    planned = [retry for _, retry in sorted(retries.items()) if retry.planned]
    return _merged(rows, chosen, [stack.enter_context(open_rows(storage, retry)) for retry in planned])


def _merged(rows: Rows, chosen: Filter, retries: Sequence[Rows]) -> Iterator[Rowed]:
    better: dict[str, tuple[Rows, int]] = {}
    for retry in retries:
        places = retry.positions(Filter(state="succeeded"))
        custom_ids = retry.table["custom_id"].take(pa.array(places)).to_pylist()
        better.update(zip(custom_ids, ((retry, place) for place in places.tolist()), strict=True))
    twice = {one for one, number in Counter(rows.table["custom_id"].to_pylist()).items() if number > 1}
    for entry, raw in rows.each(chosen):
        is_valid = output_lines.invalid_line({"error": entry.row.error}) is None
        is_named = is_valid or entry.row.custom_id not in twice  # else a valid line has its custom_id
        if entry.state != "succeeded" and is_named and (answered := better.get(entry.row.custom_id)):
            retry, place = answered
            (newer,) = retry.raw(np.array([place]))
            row = entry.row
            row = ResultRow.of(row.line, row.custom_id, row.body, json_lines.loads(newer.answer), newer.seconds)
            yield Entry(row, "succeeded", None), newer
        else:
            yield entry, raw


def _jsonl(rows: Iterator[Rowed]) -> Iterator[bytes]:
    answers = (raw.answer.rstrip(b"\n") + b"\n" for _, raw in rows if raw.answer)
    while piece := b"".join(itertools.islice(answers, PIECE)):
        yield piece


def _csv(rows: Iterator[Rowed]) -> Iterator[bytes]:
    text = io.StringIO()
    rows, columns = _with_columns(rows)
    names = {name: str(harmless(column)) for name, column in columns.items()}
    # A quoted text with a semicolon is one cell where spreadsheets split at semicolons, too.
    options: dict[str, Any] = {"lineterminator": "\r\n", "quoting": csv.QUOTE_NONNUMERIC}
    writer = csv.DictWriter(text, [*names.values(), *COLUMNS], extrasaction="ignore", **options)
    writer.writeheader()
    yield "\N{BYTE ORDER MARK}".encode()  # without it spreadsheets take UTF-8 for a code page
    while True:
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
        piece = list(itertools.islice(rows, PIECE))
        if not piece:
            return
        records = (_record(entry, raw, names) for entry, raw in piece)
        writer.writerows({name: harmless(value) for name, value in each.items()} for each in records)


def _with_columns(rows: Iterator[Rowed]) -> tuple[Iterator[Rowed], dict[str, str]]:
    """Return the rows, and what the columns of the table that they were made of are called beside the answers."""
    first = list(itertools.islice(rows, PIECE))
    known = dict.fromkeys(name for _, raw in first for name in row_of(raw.request))
    return itertools.chain(first, rows), {name: f"row.{name}" if name in SCHEMA.names else name for name in known}


def _record(entry: Entry, raw: Raw, names: dict[str, str]) -> dict[str, Any]:
    cells = row_of(raw.request) if names else {}
    shown = {name: None if (cell := cells.get(name)) is None else text_of(cell) for name in names}
    return {names[name]: value for name, value in shown.items()} | record(entry.row)


def _parquet(rows: Iterator[Rowed]) -> Iterator[bytes]:
    sink = io.BytesIO()
    rows, names = _with_columns(rows)
    schema = pa.schema([*((name, pa.string()) for name in names.values()), *SCHEMA])
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        while piece := [_record(*row, names) for row in itertools.islice(rows, PIECE)]:
            writer.write_table(pa.Table.from_pylist(piece, schema))
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()


FORMATS: dict[str, tuple[str, Callable[[Iterator[Rowed]], Iterator[bytes]]]] = {
    "jsonl": ("application/jsonl", _jsonl),
    "csv": ("text/csv", _csv),
    "parquet": ("application/vnd.apache.parquet", _parquet),
}
"""Media type and writer of each format. jsonl has lines of the output and error files, and no unanswered request."""
