"""The rows of a job's input: a Parquet file, JSON lines, a CSV table or a text file, row by row or as Arrow tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import PurePath
from typing import IO, Any, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from batchyard.errors import RequestError

Columns: TypeAlias = dict[str, Any]
TABLE_ROWS = 4096
MAX_FIELD = 16 * 1024 * 1024


class RowError(Exception):
    """A row that cannot be read. The message says why."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number
        self.message = message


def rows(file: IO[bytes], name: str) -> Iterator[Columns | RowError]:
    """Yield the columns of each row, or an error in its place. Row 0 is the first one; blank lines are no rows.

    A text file has one column, `prompt`. So has a line of JSON that is a string.

    Args:
        name: the file's name, whose suffix says the format.

    Raises:
        RequestError: the file as a whole cannot be read.
    """
    return _reader(name)(file)


def check_name(name: str, param: str) -> None:
    """Raise RequestError about `param` for a file whose name does not say a format."""
    if _suffix(name) not in _READERS:
        raise _unknown(name, "invalid_value", param)


def tables(file: IO[bytes], name: str) -> Iterator[pa.Table]:
    """Yield the rows as tables of one schema: the file's own, or for formats without types one that holds all values.

    Raises:
        RequestError: as `rows`.
    """
    if _suffix(name) == ".parquet":
        with _parquet(file) as source:
            for batch in source.iter_batches(TABLE_ROWS):
                yield pa.Table.from_batches([batch])
        return
    schema: pa.Schema | None = None
    for table in _inferred(file, name):
        schema = table.schema if schema is None else _common(schema, table.schema)
    file.seek(0)
    for values in _batched(file, name):
        assert schema is not None
        texts = {field.name for field in schema if field.type == pa.string()}
        yield pa.Table.from_pylist(
            [{key: _text(value) if key in texts else value for key, value in row.items()} for row in values], schema
        )


def _reader(name: str) -> Callable[[IO[bytes]], Iterator[Columns | RowError]]:
    suffix = _suffix(name)
    if suffix not in _READERS:
        raise _unknown(name, "invalid_input_file", "input_file_id")
    return _READERS[suffix]


def _unknown(name: str, code: str, param: str) -> RequestError:
    formats = ", ".join(_READERS)
    message = f"The input {name!r} has none of the formats {formats}; its name must end in one of them."
    return RequestError(message, code=code, param=param)


def _suffix(name: str) -> str:
    return PurePath(name).suffix.lower()


def _parquet(file: IO[bytes]) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except pa.ArrowException as error:
        raise _unreadable(f"The file is no Parquet file: {error}") from None


def _of_parquet(file: IO[bytes]) -> Iterator[Columns | RowError]:
    with _parquet(file) as source:
        try:
            for batch in source.iter_batches(TABLE_ROWS):
                yield from batch.to_pylist()
        except pa.ArrowException as error:
            raise _unreadable(f"The Parquet file is damaged: {error}") from None


def _of_jsonl(file: IO[bytes]) -> Iterator[Columns | RowError]:
    number = 0
    for line in file:
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            yield RowError(number, f"The row is not valid JSON: {error.msg}.")
        else:
            if isinstance(value, str):
                value = {"prompt": value}
            yield value if isinstance(value, dict) else RowError(number, "The row is neither an object nor a string.")
        number += 1


def _of_csv(file: IO[bytes]) -> Iterator[Columns | RowError]:
    csv.field_size_limit(MAX_FIELD)
    reader = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), strict=True)
    try:
        for number, row in enumerate(reader):
            if None in row or None in row.values():
                columns = len(reader.fieldnames or [])
                yield RowError(number, f"The row has not {columns} columns as the first line has.")
            else:
                yield dict(row)
    except csv.Error as error:
        raise _unreadable(f"The table is not valid CSV after line {reader.line_num}: {error}") from None
    except UnicodeDecodeError as error:
        raise _unreadable(f"The file is not UTF-8: {error.reason}") from None


def _of_txt(file: IO[bytes]) -> Iterator[Columns | RowError]:
    number = 0
    for line in file:
        try:
            text = line.decode("utf-8-sig" if number == 0 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield RowError(number, f"The line is not UTF-8: {error.reason}.")
            number += 1
            continue
        if text.strip():
            yield {"prompt": text}
            number += 1


_READERS: dict[str, Callable[[IO[bytes]], Iterator[Columns | RowError]]] = {
    ".parquet": _of_parquet,
    ".jsonl": _of_jsonl,
    ".csv": _of_csv,
    ".txt": _of_txt,
}


def _unreadable(message: str) -> RequestError:
    return RequestError(f"{message}.", code="invalid_input_file", param="input_file_id")


def _batched(file: IO[bytes], name: str) -> Iterator[list[Columns]]:
    readable = (row for row in rows(file, name) if not isinstance(row, RowError))
    while batch := list(islice(readable, TABLE_ROWS)):
        yield batch


def _inferred(file: IO[bytes], name: str) -> Iterator[pa.Table]:
    for batch in _batched(file, name):
        columns = dict.fromkeys(key for row in batch for key in row)
        yield pa.table({key: _array([row.get(key) for row in batch]) for key in columns})


def _array(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):  # values of several types
        return pa.array([_text(value) for value in values], pa.string())


def _common(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    try:
        return pa.unify_schemas([one, other], promote_options="permissive")
    except pa.ArrowException:
        names = dict.fromkeys([*one.names, *other.names])
        return pa.schema([(name, _type(one, other, name)) for name in names])


def _type(one: pa.Schema, other: pa.Schema, name: str) -> pa.DataType:
    types = {schema.field(name).type for schema in (one, other) if name in schema.names} - {pa.null()}
    return next(iter(types), pa.null()) if len(types) <= 1 else pa.string()


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
