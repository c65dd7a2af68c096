"""Step `parquet`: the results as one table."""

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from results.table import SCHEMA, record
from store.formats.results import ResultRow
from tasks.steps.step import Results, Step, StepOptions

BLOCK_ROWS = 2000
BLOCK_BYTES = 64 * 1024 * 1024
"""Approximate limit of the texts and embeddings of a block in memory."""
FLOAT_BYTES = 32
"""A Python float and its place in a list."""


class ParquetOptions(StepOptions):
    """No options of its own."""

    step: Literal["parquet"]


def write(rows: Iterator[ResultRow], target: Any) -> int:
    """Write rows as a table with SCHEMA to a path or a binary file, and return how many there were."""
    lines = 0
    with pq.ParquetWriter(target, SCHEMA, compression="zstd") as writer:
        while block := list(_block(rows)):
            writer.write_table(pa.Table.from_pylist(block, SCHEMA))
            lines += len(block)
    return lines


def _block(rows: Iterator[ResultRow]) -> Iterator[dict[str, Any]]:
    size = 0
    for row in itertools.islice(rows, BLOCK_ROWS):
        entry = record(row)
        yield entry
        size += len(entry["text"] or "") + FLOAT_BYTES * sum(map(len, entry["embeddings"] or ()))
        if size >= BLOCK_BYTES:
            return


def parquet(results: Results, options: ParquetOptions) -> None:
    """Write `results.parquet` (SCHEMA), with null where a request has no such value."""
    with results.create() as file:
        lines = write(results.rows(), file)
    results.add("results.parquet", file.sha256, file.size, lines)


STEP = Step("parquet", "the results as a typed table, one row a request, in input order.", ParquetOptions, parquet)
