"""Files of tables, by their suffix: csv, tsv, jsonl and parquet, those of text also compressed (.gz, .zst)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import orjson

from batchyard.errors import ConfigurationError

Rows = Sequence[Mapping[str, Any]]
Format = Literal["csv", "tsv", "jsonl", "parquet"]
EMPTY = frozenset({"", "NaN", "nan", "NA", "<NA>", "NULL", "null"})
"""Cells of a csv file that have no value, as pandas, polars, R and databases write them."""
_FORMATS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_MAX_CELL = 16 * 1024 * 1024


def format_of(file: Path) -> tuple[Format, str | None]:
    """Return format and compression of a file by its name. Raises ConfigurationError for a name that tells none."""
    compression = _COMPRESSIONS.get(file.suffix.lower())
    kind = _FORMATS.get((Path(file.stem) if compression else file).suffix.lower())
    if kind is None or (kind == "parquet" and compression):
        raise ConfigurationError(
            f"{file}: its name does not tell what it holds; name it .csv, .tsv, .jsonl or .parquet, "
            "and text that is compressed .csv.gz or .csv.zst"
        )
    return kind, compression


def read(file: Path) -> Any:
    """Read a table: an Arrow table of parquet, a list of dicts of any other format.

    Cells of csv are texts, as they stand there. Raises ConfigurationError if the file is not of its format.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind, compression = format_of(file)
    try:
        if kind == "parquet":
            return pq.read_table(file)
        with io.TextIOWrapper(pa.input_stream(str(file), compression), encoding="utf-8-sig", newline="") as text:
            return list(_objects(text) if kind == "jsonl" else _rows(text, _DELIMITERS[kind]))
    except (ValueError, csv.Error, pa.ArrowException) as error:
        raise ConfigurationError(f"{file} is not {kind}: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror or error}") from error


def cells(file: Path, table: Any) -> Any:
    """Return a table that was read from `file`, with None for each cell of csv that has no value."""
    if format_of(file)[0] not in _DELIMITERS:
        return table
    return [{name: None if cell in EMPTY else cell for name, cell in row.items()} for row in table]


def beside(table: Any, new: Any, prefix: str) -> Any:
    """Return a table with the columns of another one of its kind beside its own, their names with a prefix."""
    if isinstance(table, list):
        return [
            {**row, **{prefix + name: value for name, value in added.items()}}
            for row, added in zip(table, new, strict=True)
        ]
    for name in new.column_names:
        table = table.append_column(prefix + name, new.column(name))
    return table


def write(file: Path, table: Any) -> None:
    """Write an Arrow table or a list of dicts with the same keys; the file appears whole or not at all.

    Raises ConfigurationError if it cannot be written, or has values that parquet has no type for.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind, compression = format_of(file)
    part = file.with_name(f".{file.name}.part")
    try:
        if kind == "parquet":
            pq.write_table(table if isinstance(table, pa.Table) else pa.table(_columns(table)), part)
        else:
            rows = table.to_pylist() if isinstance(table, pa.Table) else table
            with pa.output_stream(str(part), compression) as stream:
                if kind == "jsonl":
                    stream.writelines(orjson.dumps(row, default=str) + b"\n" for row in rows)
                else:
                    _write_rows(stream, rows, _DELIMITERS[kind])
        part.replace(file)
    except (pa.ArrowException, orjson.JSONEncodeError) as error:
        raise ConfigurationError(f"{file}: its values do not fit {kind}: {error}; name a .jsonl or .csv") from error
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}; name a file that can be written") from error
    finally:
        part.unlink(missing_ok=True)


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _columns(rows: Rows) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in _names(rows)}


def _rows(text: IO[str], delimiter: str) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(_MAX_CELL)
    reader = csv.DictReader(text, delimiter=delimiter, strict=True)
    columns = list(reader.fieldnames or [])
    if len(set(columns)) < len(columns):
        raise ValueError(f"two columns have one name: {', '.join(columns)}")
    for row in reader:
        if None in row or None in row.values():
            raise ValueError(f"line {reader.line_num} has not {len(columns)} cells, as the first line has")
        yield row


def _objects(text: IO[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text, 1):
        if line.strip():
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ValueError(f"line {number}: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no object")
            yield row


def _write_rows(stream: IO[bytes], rows: Rows, delimiter: str) -> None:
    """Write csv. Lists and mappings become JSON."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    writer = csv.DictWriter(text, _names(rows), delimiter=delimiter)
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(value) for key, value in row.items()})
    text.flush()
    text.detach()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value
