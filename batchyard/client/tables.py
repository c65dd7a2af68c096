"""Files of tables, by their suffix: csv, tsv, jsonl and parquet, those of text also compressed."""

import csv
import io
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.client import frames, output_files
from batchyard.errors import ConfigurationError
from batchyard.tables import formats, reading
from batchyard.tables.cells import Unreadable, of_arrow
from batchyard.tables.formats import DELIMITERS, Kind, TableError
from batchyard.tables.images import as_text

Rows = Sequence[Mapping[str, Any]]
WRITTEN = ("csv", "tsv", "jsonl", "parquet")
_UNLIMITED = 2**31 - 1
"""Bytes of a line: the rows are in memory, and the server says what is too long for it."""


def kind_of(file: Path) -> Kind:
    """Return format and compression of a file by its name. Raises ConfigurationError for a name that tells none."""
    kind = formats.kind_of(file.name)
    if kind is None:
        raise ConfigurationError(
            f"{file.name}: its name does not tell what it holds; name it {formats.NAMES}, and text that is compressed "
            f"{formats.COMPRESSED}"
        )
    return kind


def check_output(file: Path) -> None:
    """Raise ConfigurationError for a file whose name tells no format that is written."""
    if kind_of(file).format not in WRITTEN:
        raise ConfigurationError(f"{file}: its name does not tell what to write; name it .{', .'.join(WRITTEN)}")


def read(file: Path) -> Any:
    """Read a table: an Arrow table of parquet, a list of dicts of any other format.

    Cells of csv are texts, as they stand there. Raises ConfigurationError if the file is not of its format.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind_of(file).format != "parquet":
        return list(rows_of(file))
    try:
        return pq.read_table(file)
    except pa.ArrowException as error:
        raise ConfigurationError(f"{file} is not parquet: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror or error}") from error


def columns(file: Path) -> list[str]:
    """Return the names of a file's columns. Raises ConfigurationError as `read`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind_of(file).format != "parquet":
        return list(dict.fromkeys(name for row in rows_of(file) for name in row))
    try:
        return list(pq.read_schema(file).names)
    except pa.ArrowException as error:
        raise ConfigurationError(f"{file} is not parquet: {error}") from error


def stream(file: Path, names: Collection[str], null_values: Collection[str] = ()) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file with these columns, None where a row has none. Memory does not hold them."""
    for row in rows_of(file, null_values, names):
        yield {name: row.get(name) for name in names}


def batches(file: Path, size: int) -> Iterator[Any]:
    """Yield the rows of a file as Arrow tables of `size` rows, the last one with fewer; one without rows at least.

    Columns of text files are texts, and JSON where they hold something else. Raises ConfigurationError as `read`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind_of(file).format == "parquet":
        with pq.ParquetFile(file) as source:
            yield from (pa.Table.from_batches([batch]) for batch in source.iter_batches(size))
            if not source.metadata.num_rows:
                yield source.schema_arrow.empty_table()
        return
    schema = pa.schema([(name, pa.string()) for name in columns(file)])
    rows = (
        {
            name: value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in row.items()
        }
        for row in rows_of(file)
    )
    chunk = list(itertools.islice(rows, size))
    yield pa.Table.from_pylist(chunk, schema)
    while chunk := list(itertools.islice(rows, size)):
        yield pa.Table.from_pylist(chunk, schema)


def rows_of(
    file: Path, null_values: Collection[str] = (), names: Collection[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file. `names`: columns of parquet that are needed; None: all."""
    kind = kind_of(file)
    pick = None if names is None else lambda _: names
    try:
        with file.open("rb") as stream:
            content = formats.decompressed(stream, kind.compression)
            unlimited: dict[str, Any] = {
                "max_line_bytes": _UNLIMITED,
                "null_values": null_values,
                "pick": pick,
                "max_bytes": None,
            }
            for row in reading.rows(content, kind.format, **unlimited):
                if row.problem is not None:
                    raise ConfigurationError(f"{file}: line {row.line} {row.problem}")
                yield row.values
    except TableError as error:
        raise ConfigurationError(f"{file}: {error.message}") from error
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror or error}") from error


def cells(file: Path, table: Any, null_values: Collection[str]) -> Any:
    """Return a table of `file` with None for csv cells in `null_values`."""
    if kind_of(file).format not in DELIMITERS or not null_values:
        return table
    return [{name: None if cell in null_values else cell for name, cell in row.items()} for row in table]


def beside(table: Any, new: Any, prefix: str) -> Any:
    """Return a table with another's columns beside its own, their names prefixed."""
    if isinstance(table, list):
        return [
            {**row, **{prefix + name: value for name, value in added.items()}}
            for row, added in zip(table, new, strict=True)
        ]
    for name in new.column_names:
        table = table.append_column(prefix + name, new.column(name))
    return table


def taken(table: Any, rows: Sequence[int]) -> Any:
    """Return a table with these rows of another. A list without rows becomes an Arrow table, which has the columns."""
    frame = frames.of(table)
    return frame.taken(rows) if rows or not isinstance(table, list) else empty(frame.columns)


def empty(names: Sequence[str]) -> Any:
    """Return an Arrow table of columns without rows."""
    import pyarrow as pa

    return pa.table({name: pa.array([], pa.string()) for name in names})


def write(file: Path, table: Any) -> None:
    """Write an Arrow table or a list of dicts, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    _, kind, compression = kind_of(file)
    try:
        with output_files.written(file) as part:
            if kind == "parquet":
                if not isinstance(table, pa.Table):
                    table = pa.table({name: _column([row.get(name) for row in table]) for name in _names(table)})
                pq.write_table(table, part)
                return
            rows, names = (_rows(table), table.column_names) if isinstance(table, pa.Table) else (table, _names(table))
            with pa.output_stream(str(part), compression) as stream:
                if kind == "jsonl":
                    stream.writelines(json_lines.line(row, as_text) for row in rows)
                else:
                    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
                    writer = csv.DictWriter(text, names, delimiter=DELIMITERS[kind])
                    writer.writeheader()
                    for row in rows:
                        writer.writerow({key: _cell(value) for key, value in row.items()})
                    text.flush()
                    text.detach()
    except (pa.ArrowException, OverflowError, orjson.JSONEncodeError) as error:
        raise ConfigurationError(f"{file}: its values do not fit {kind}: {error}; name a .jsonl or .csv") from error
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}; name a file that can be written") from error


def _rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table, without a cell that is no value of Python."""
    columns = [
        [None if isinstance(value, Unreadable) else value for value in of_arrow(column)] for column in table.columns
    ]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _column(values: list[Any]) -> Any:
    """Return an Arrow array; integers of more than 64 bits are decimals, which keep all digits."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except OverflowError:
        return pa.array([Decimal(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in values])


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=as_text)
    return as_text(value) if isinstance(value, bytes) else value
