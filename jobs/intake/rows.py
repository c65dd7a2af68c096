"""The rows of a job's input, of each format of `batchyard.tables`, row by row or as Arrow tables."""

from collections.abc import Collection, Iterator
from itertools import islice
from typing import IO, Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from batchyard import json_lines
from batchyard.errors import RequestError
from batchyard.settings import Settings
from batchyard.tables import formats, reading
from batchyard.tables.formats import Kind, TableError
from batchyard.wording import quoted

Columns: TypeAlias = dict[str, Any]
TABLE_ROWS = 4096


class RowError(NamedTuple):
    """Why a row cannot be read."""

    message: str
    code: str


def rows(
    file: IO[bytes], name: str, settings: Settings | None = None, null_values: Collection[str] = ()
) -> Iterator[Columns | RowError]:
    """Yield the columns of each row, or its error; see `reading`.

    `name` says format and compression by its suffixes. Raises RequestError: the file as a whole cannot be read.
    """
    kind = formats.kind_of(name)
    if kind is None:
        raise _unknown(name, "invalid_input_file", "input_file_id")
    max_bytes = None if settings is None else settings.max_file_bytes
    max_line_bytes = json_lines.MAX_LINE_BYTES if settings is None else settings.max_line_bytes
    try:
        content = formats.decompressed(file, kind.compression, max_bytes)
        limits: dict[str, Any] = {"max_line_bytes": max_line_bytes, "max_bytes": max_bytes or reading.MAX_PARQUET_BYTES}
        for row in reading.rows(content, kind.format, **limits, null_values=null_values):
            if row.problem is None:
                yield row.values
            else:
                code = "invalid_input_file" if row.code == "invalid_value" else row.code
                yield RowError(f"The row {row.problem}.", code)
    except TableError as error:
        code = "invalid_input_file" if error.code == "invalid_value" else error.code
        raise RequestError(f"{error.message}.", code=code, param="input_file_id") from None


def check_name(name: str, param: str) -> None:
    """Raise RequestError about `param` for a name without a format."""
    if formats.kind_of(name) is None:
        raise _unknown(name, "invalid_value", param)


def tables(file: IO[bytes], name: str) -> Iterator[pa.Table]:
    """Yield the rows as tables of one schema, which holds all values. Raises as `rows`."""
    kind: Kind | None = formats.kind_of(name)
    if kind is not None and kind.format == "parquet":
        yield from _parquet(file)
        return
    schema: pa.Schema | None = None
    for batch in _batched(file, name):
        columns = dict.fromkeys(key for row in batch for key in row)
        inferred = pa.table({key: _array([row.get(key) for row in batch]) for key in columns}).schema
        schema = inferred if schema is None else _common(schema, inferred)
    file.seek(0)
    for values in _batched(file, name):
        assert schema is not None
        texts = {field.name for field in schema if field.type == pa.string()}
        yield pa.Table.from_pylist(
            [{key: _text(value) if key in texts else value for key, value in row.items()} for row in values], schema
        )


def _unknown(name: str, code: str, param: str) -> RequestError:
    message = (
        f"The input {quoted(name)} has none of the formats {formats.NAMES}; its name must end in one of them. Text may "
        f"be compressed: {formats.COMPRESSED}."
    )
    return RequestError(message, code=code, param=param)


def _parquet(file: IO[bytes]) -> Iterator[pa.Table]:
    try:
        with pq.ParquetFile(file) as source:
            for batch in source.iter_batches(TABLE_ROWS):
                yield pa.Table.from_batches([batch])
    except pa.ArrowException as error:
        message = f"The file is not Parquet: {error}."
        raise RequestError(message, code="invalid_input_file", param="input_file_id") from None


def _batched(file: IO[bytes], name: str) -> Iterator[list[Columns]]:
    readable = (row for row in rows(file, name) if not isinstance(row, RowError))
    while batch := list(islice(readable, TABLE_ROWS)):
        yield batch


def _array(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):  # values of several types
        return pa.array([_text(value) for value in values], pa.string())


def _common(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    try:
        return pa.unify_schemas([one, other], promote_options="permissive")
    except pa.ArrowException:
        common = []
        for name in dict.fromkeys([*one.names, *other.names]):
            types = {schema.field(name).type for schema in (one, other) if name in schema.names} - {pa.null()}
            common.append((name, next(iter(types), pa.null()) if len(types) <= 1 else pa.string()))
        return pa.schema(common)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_lines.dumps(value).decode()
