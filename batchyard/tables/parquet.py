"""Reads Parquet, whose few bytes may hold any number of values, within limits."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from batchyard.tables import thrift
from batchyard.tables.cells import of_arrow
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
FOOTER_BYTES = 8 * 2**20
_DICTIONARY_PAGE, _DELTA_BYTE_ARRAY = 2, 7


def rows(
    file: IO[bytes], max_line_bytes: int, pick: Picked | None = None, max_bytes: int | None = None
) -> Iterator[dict[str, Any] | None]:
    """Yield the values of each row by column; None for a row of more than `max_line_bytes`.

    Args:
        pick: returns which columns are needed; the others are not read.
        max_bytes: most bytes of their values, decompressed; None: the file is trusted.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    options = {"pre_buffer": False, "buffer_size": DICTIONARY_BYTES}
    try:
        source = pq.ParquetFile(file, **options)
        names = source.schema_arrow.names
        if len(set(names)) < len(names):
            raise TableError(f"Two columns have one name: {', '.join(names)}")
        needed, at_once, total = names if pick is None else list(pick(names)), _ROWS, 0
        if max_bytes is not None:
            try:
                dictionaries, at_once = _checked(file, source, needed, max_bytes)
            except (TypeError, ValueError, LookupError, OverflowError) as error:  # a footer of other values
                raise EOFError("its footer or a page header cannot be read") from error
            source = pq.ParquetFile(file, metadata=source.metadata, read_dictionary=dictionaries, **options)
        for batch in source.iter_batches(at_once, columns=needed):
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
                cells = [of_arrow(column) for column in part.columns]
                for values in zip(*cells, strict=True) if cells else [()] * part.num_rows:
                    yield dict(zip(part.schema.names, values, strict=True))
    except (pa.ArrowException, OSError, EOFError, UnicodeError) as error:
        raise TableError(f"The file is not Parquet: {error}") from None


def too_large(max_bytes: int) -> TableError:
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
    return int(max(array.nbytes, pc.sum(lengths).as_py() or 0 if lengths else 0))


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
    """The pages of a column as their headers describe them: what is read, whatever the footer says."""

    bytes: int = 0
    values: int = 0
    largest: int = 0
    dictionary: int = 0
    delta: int = 0  # the largest of those in which a value repeats the beginning of the one before


def _checked(file: IO[bytes], source: pq.ParquetFile, needed: Collection[str], max_bytes: int) -> tuple[list[str], int]:
    """Return the columns that have to stay dictionaries, and the rows of a batch. Raises TableError: too large."""
    dictionaries, total, delta = set[str](), 0, 1
    # pyarrow's own metadata of columns ends the process for some wrong footers.
    size = int.from_bytes(_at(file, file.seek(-8, io.SEEK_END), 4), "little")
    if size > FOOTER_BYTES:
        raise EOFError(f"its footer has more than {FOOTER_BYTES} bytes")
    footer = thrift.struct(io.BytesIO(_at(file, file.seek(-8 - size, io.SEEK_END), size)))
    groups = [[chunk[3] for chunk in group[1]] for group in footer[4] or ()]
    for index in range(source.metadata.num_columns):
        column = source.schema.column(index)
        path, nested = column.path, column.path not in source.schema_arrow.names
        if not any(path == name or path.startswith(f"{name}.") for name in needed):
            continue
        for group in groups:
            pages = _pages(file, group[index])
            total += max(pages.bytes, max(_VALUE_BYTES, column.length or 0) * pages.values)
            if pages.largest > PAGE_BYTES or (nested and pages.delta):
                what = "nested values in DELTA_BYTE_ARRAY" if pages.delta else f"a page of {pages.largest} bytes"
                raise TableError(f"The column {path!r} has {what}; write it with smaller, plain pages")
            if total > max_bytes:
                raise too_large(max_bytes)
            delta = max(delta, pages.delta)
            is_text = column.physical_type == "BYTE_ARRAY" and column.logical_type.type in ("STRING", "NONE", "JSON")
            if is_text and pages.dictionary > (0 if nested else DICTIONARY_BYTES):
                dictionaries.add(path)
    return sorted(dictionaries), max(1, min(_ROWS, _ROWS * DICTIONARY_BYTES // delta))


def _at(file: IO[bytes], place: int, size: int) -> bytes:
    file.seek(place)
    return file.read(size)


def _pages(file: IO[bytes], chunk: list[Any]) -> _Pages:
    """Read the headers of all pages of a column's chunk, as far as a reader goes. Raises EOFError."""
    pages = _Pages()
    start, dictionary = chunk[9], chunk[11]
    if 0 < dictionary < start:
        start = dictionary
    end = start + chunk[7]
    file.seek(start)
    while file.tell() < end and pages.values < chunk[5]:
        header = thrift.struct(file)
        kind, size, compressed = header[1:4]
        if size < 0 or not 0 <= compressed <= end - file.tell():
            raise EOFError("a page has no size")
        pages.bytes += size
        pages.largest = max(pages.largest, size)
        if kind == _DICTIONARY_PAGE:
            pages.dictionary = max(pages.dictionary, size)
        elif data := header[5] or header[8]:  # DataPageHeader or DataPageHeaderV2
            pages.values += data[1]
            encoding = data[2] if header[5] else data[4]
            pages.delta = max(pages.delta, size if encoding == _DELTA_BYTE_ARRAY else 0)
        file.seek(compressed, 1)
    return pages
