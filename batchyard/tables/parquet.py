"""Reads Parquet, whose few bytes may hold any number of values, within limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from batchyard.tables import arrow
from batchyard.tables.formats import TableError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

Picked = Callable[[list[str]], Collection[str]]
PAGE_BYTES = 100_000_000
"""Largest page that is decompressed. Writers make pages of a megabyte; DuckDB's are no larger than this."""
DICTIONARY_BYTES = 2**20
"""A column with a larger dictionary stays a dictionary in memory, since each row may name its largest value."""
# At once in memory: a value that many rows share is small in the file.
_ROWS = 64
_VALUE_BYTES = 4
"""Least bytes of a value in memory. Runs of equal ones take none in the file."""
_DICTIONARY_PAGE, _DELTA_BYTE_ARRAY = 2, 7
_FIELDS = 64
"""More than a page header has."""


@dataclass
class Opened:
    """A file whose sizes were checked. `batch`: rows that may be read at once."""

    source: pq.ParquetFile
    needed: list[str]
    batch: int


@contextmanager
def opened(file: IO[bytes], pick: Picked | None = None, max_bytes: int | None = None) -> Iterator[Opened]:
    """Open a file and check the sizes of the columns that are needed.

    Args:
        pick: returns which columns are needed.
        max_bytes: most bytes of their values, decompressed; None: the file is trusted.

    Raises:
        TableError: it is not Parquet, or too large.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    options = {"pre_buffer": False, "buffer_size": DICTIONARY_BYTES}
    try:
        source = pq.ParquetFile(file, **options)
        names = source.schema_arrow.names
        if len(set(names)) < len(names):
            raise TableError(f"Two columns have one name: {', '.join(names)}")
        needed, batch = names if pick is None else list(pick(names)), _ROWS
        if max_bytes is not None:
            dictionaries, batch = _checked(file, source, needed, max_bytes)
            source = pq.ParquetFile(file, metadata=source.metadata, read_dictionary=dictionaries, **options)
        yield Opened(source, needed, batch)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise TableError(f"The file is not Parquet: {error}") from None


def rows(opened: Opened, max_line_bytes: int, max_bytes: int | None) -> Iterator[dict[str, Any] | None]:
    """Yield the needed values of each row by column; None for a row of more than `max_line_bytes`.

    Raises TableError for more than `max_bytes` of values.
    """
    total = 0
    for batch in opened.source.iter_batches(opened.batch, columns=opened.needed):
        size = sum(map(_decoded, batch.columns))
        total += size
        if max_bytes is not None and total > max_bytes:
            raise too_large(max_bytes)
        # Long rows one by one: in a dictionary they share what each has in Python.
        parts = [batch] if size <= max_line_bytes else [batch.slice(row, 1) for row in range(batch.num_rows)]
        for part in parts:
            if part is not batch and sum(map(_decoded, part.columns)) > max_line_bytes:
                yield None
                continue
            cells = [arrow.values(column) for column in part.columns]
            for values in zip(*cells, strict=True) if cells else [()] * part.num_rows:
                yield dict(zip(part.schema.names, values, strict=True))


def too_large(max_bytes: int) -> TableError:
    """Return the refusal of a file with more than `max_bytes`."""
    return TableError(f"The file has more than {max_bytes} bytes when it is decompressed", "file_too_large")


def _decoded(array: Any) -> int:
    """Return the bytes of an array's values, each counted as often as it stands there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = _lengths(array.dictionary)
        return _VALUE_BYTES * len(array) + (pc.sum(lengths.take(array.indices)).as_py() or 0 if lengths else 0)
    if pa.types.is_struct(kind):
        return sum(map(_decoded, array.flatten()))
    if pa.types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        return sum(_decoded(part.slice(first, last - first)) for part in (array.keys, array.items))
    if pa.types.is_nested(kind):
        return _decoded(array.flatten())
    lengths = _lengths(array)
    return max(array.nbytes, pc.sum(lengths).as_py() or 0 if lengths else 0)


def _lengths(array: Any) -> Any:
    """Return the bytes of each value of texts; None for values of other types."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return pc.binary_length(array).cast(pa.int64())
    except pa.ArrowNotImplementedError:
        return None


@dataclass
class _Pages:
    """The pages of a column as their headers describe them: what is read, whatever the footer says.

    Attributes:
        delta: the largest of those in which a value repeats the beginning of the one before.
    """

    bytes: int = 0
    values: int = 0
    largest: int = 0
    dictionary: int = 0
    delta: int = 0


def _checked(file: IO[bytes], source: pq.ParquetFile, needed: Collection[str], max_bytes: int) -> tuple[list[str], int]:
    """Return the columns that have to stay dictionaries, and the rows of a batch. Raises TableError: too large."""
    dictionaries, total, delta = set[str](), 0, 1
    for index in range(source.metadata.num_columns):
        column = source.schema.column(index)
        path, nested = column.path, column.path not in source.schema_arrow.names
        if not any(path == name or path.startswith(f"{name}.") for name in needed):
            continue
        for group in range(source.metadata.num_row_groups):
            pages = _pages(file, source.metadata.row_group(group).column(index))
            total += max(pages.bytes, max(_VALUE_BYTES, column.length or 0) * pages.values)
            if pages.largest > PAGE_BYTES or (nested and pages.delta):
                what = "nested values in DELTA_BYTE_ARRAY" if pages.delta else f"a page of {pages.largest} bytes"
                raise TableError(
                    f"The column {path!r} has {what}; write it with smaller, plain pages", "file_too_large"
                )
            if total > max_bytes:
                raise too_large(max_bytes)
            delta = max(delta, pages.delta)
            is_text = column.physical_type == "BYTE_ARRAY" and column.logical_type.type in ("STRING", "NONE", "JSON")
            if is_text and pages.dictionary > (0 if nested else DICTIONARY_BYTES):
                dictionaries.add(path)
    return sorted(dictionaries), max(1, min(_ROWS, _ROWS * DICTIONARY_BYTES // delta))


def _pages(file: IO[bytes], column: Any) -> _Pages:
    """Read the headers of all pages, as far as a reader goes. Raises EOFError."""
    pages = _Pages()
    start = column.data_page_offset
    if 0 < (column.dictionary_page_offset or 0) < start:
        start = column.dictionary_page_offset
    end = start + column.total_compressed_size
    file.seek(start)
    while file.tell() < end and pages.values < column.num_values:
        kind, size, compressed, *others = _struct(file, 1)
        if size < 0 or not 0 <= compressed <= end - file.tell():
            raise EOFError("a page has no size")
        pages.bytes += size
        pages.largest = max(pages.largest, size)
        if kind == _DICTIONARY_PAGE:
            pages.dictionary = max(pages.dictionary, size)
        else:
            values, *rest = others[1] or others[4]  # DataPageHeader or DataPageHeaderV2
            pages.values += values
            encoding = rest[0] if others[1] else rest[2]
            pages.delta = max(pages.delta, size if encoding == _DELTA_BYTE_ARRAY else 0)
        file.seek(compressed, 1)
    return pages


def _struct(file: IO[bytes], depth: int) -> list[Any]:
    """Read the first 8 fields of a struct in Thrift's compact protocol: its numbers and structs, and 0 for others."""
    fields: list[Any] = [0] * 8
    number = 0
    for _ in range(_FIELDS):
        head = _byte(file)
        if not head:
            return fields
        number = number + (head >> 4) if head >> 4 else _zigzag(file)
        kind, value = head & 15, None
        if kind in (4, 5, 6):
            value = _zigzag(file)
        elif kind == 8:
            file.seek(min(_varint(file), 2**31), 1)
        elif kind == 12 and depth < 4:
            value = _struct(file, depth + 1)
        elif kind not in (1, 2):  # true and false are in the field's head
            break
        if 1 <= number <= len(fields) and value is not None:
            fields[number - 1] = value
    raise EOFError("a page header cannot be read")


def _byte(file: IO[bytes]) -> int:
    byte = file.read(1)
    if not byte:
        raise EOFError("it ends too early")
    return byte[0]


def _varint(file: IO[bytes]) -> int:
    value = shift = 0
    while (byte := _byte(file)) & 0x80 and shift < 63:
        value |= (byte & 0x7F) << shift
        shift += 7
    return value | byte << shift


def _zigzag(file: IO[bytes]) -> int:
    value = _varint(file)
    return value >> 1 ^ -(value & 1)
