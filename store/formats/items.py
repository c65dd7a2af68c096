"""Items: a Parquet artifact of a job's items in the order in which they begin.

Columns: position (int64, from 0, that order), number (int64, row of the input, from 1), custom_id (string), columns
(string, the row's columns as JSON). A row group holds at most GROUP_ITEMS items or GROUP_BYTES of text.
"""

import bisect
import itertools
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchyard import json_lines
from store.artifacts import Artifacts, ArtifactWriter
from store.formats import parquet

SCHEMA = pa.schema(
    [("position", pa.int64()), ("number", pa.int64()), ("custom_id", pa.string()), ("columns", pa.string())]
)
GROUP_ITEMS = 4096
GROUP_BYTES = 8 * 1024 * 1024
Numbers: TypeAlias = npt.NDArray[np.int64]


class StoredItem(NamedTuple):
    """An item: its place in the order, its row of the input, and that row."""

    position: int
    number: int
    custom_id: str
    columns: dict[str, Any]


class ItemsWriter:
    """Writes items in the order in which they begin. `total`: items so far."""

    def __init__(self, file: ArtifactWriter) -> None:
        self._writer = pq.ParquetWriter(file, SCHEMA, use_dictionary=False, write_statistics=False, **parquet.WRITTEN)
        self._items: list[tuple[int, str, bytes]] = []
        self._bytes = 0
        self.total = 0

    def add(self, number: int, custom_id: str, columns: bytes) -> None:
        size = len(custom_id) + len(columns)
        if len(self._items) == GROUP_ITEMS or (self._items and self._bytes + size > GROUP_BYTES):
            self._flush()
        self._items.append((number, custom_id, columns))
        self._bytes += size

    def close(self) -> None:
        if self._items:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        numbers, custom_ids, columns = zip(*self._items, strict=True)
        positions = range(self.total, self.total + len(numbers))
        texts = pa.array(columns, pa.binary()).cast(pa.string())
        table = pa.table([positions, numbers, custom_ids, texts], schema=SCHEMA)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self.total += table.num_rows
        self._items, self._bytes = [], 0


def write(artifacts: Artifacts, items: Iterable[tuple[int, str, bytes]]) -> tuple[str, int]:
    """Write items (number, custom_id, row as JSON). Return SHA-256 and number."""
    with artifacts.create() as target:
        writer = ItemsWriter(target)
        for item in items:
            writer.add(*item)
        writer.close()
    return target.sha256, writer.total


class Reader:
    """Reads items by position, for one thread. It keeps the row group that was read last."""

    def __init__(self, artifacts: Artifacts, sha256: str) -> None:
        """Raises UnavailableError, BatchyardError, as `read` does."""
        self._artifacts = artifacts
        self._sha256 = sha256
        with parquet.opened(artifacts, sha256, "items file") as file:
            self._metadata = file.metadata
        sizes = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
        self._spans = list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))
        self.total: int = sum(sizes)
        self._group: tuple[int, pa.Table] | None = None

    def __iter__(self) -> Iterator[StoredItem]:
        """Stream all items, one row group in memory. Raises as `read` does."""
        for first, stop in self._spans:
            yield from self.read(first, stop - first)

    def read(self, first: int, count: int) -> list[StoredItem]:
        """Return at most `count` items from `first` on. Raises UnavailableError; BatchyardError if damaged."""
        rows: list[StoredItem] = []
        stop = min(first + count, self.total)
        while first < stop:
            group = bisect.bisect_right(self._spans, first, key=itemgetter(0)) - 1
            table = self._read_group(group).slice(first - self._spans[group][0], stop - first)
            rows += [
                StoredItem(**entry | {"columns": json_lines.loads(entry["columns"])}) for entry in table.to_pylist()
            ]
            first += table.num_rows
        return rows

    def numbers(self) -> Numbers:
        with self._opened() as file:
            numbers: Numbers = file.read(columns=["number"], use_threads=False)["number"].to_numpy()
        return numbers

    def custom_ids(self, positions: Collection[int]) -> dict[int, str]:
        custom_ids: dict[int, str] = {}
        with self._opened() as file:
            for group, (first, stop) in enumerate(self._spans):
                places = [at for at in positions if first <= at < stop]
                if places:
                    column = file.read_row_group(group, columns=["custom_id"], use_threads=False)["custom_id"]
                    custom_ids |= {at: column[at - first].as_py() for at in places}
        return custom_ids

    def find(self, custom_id: str) -> list[int]:
        """Return the positions of the items with this custom_id. Raises as `read` does."""
        with self._opened() as file:
            column = file.read(columns=["custom_id"], use_threads=False)["custom_id"]
        positions: list[int] = pc.indices_nonzero(pc.equal(column, custom_id)).to_pylist()
        return positions

    def copy(self, positions: Numbers, target: ItemsWriter) -> None:
        """Add these items, by rising position, to another file. Raises as `read` does."""
        for group, (first, stop) in enumerate(self._spans):
            places = positions[(positions >= first) & (positions < stop)] - first
            if places.size:
                chosen = self._read_group(group).take(pa.array(places))
                for row in chosen.to_pylist():
                    target.add(row["number"], row["custom_id"], row["columns"].encode())

    def _opened(self) -> AbstractContextManager[pq.ParquetFile]:
        return parquet.opened(self._artifacts, self._sha256, "items file", self._metadata)

    def _read_group(self, group: int) -> pa.Table:
        if self._group is None or self._group[0] != group:
            with self._opened() as file:
                self._group = group, file.read_row_group(group, use_threads=False)
        return self._group[1]
