"""Result chunks: answers of one segment, as an immutable Parquet artifact.

Columns: line (int64, physical line number in the input), ok (bool: status 200), answer (string: the output line),
seconds (float64: time in the engine, null if nobody measured it or an older version wrote the chunk).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from store.artifacts import Artifacts
from store.formats import parquet

SCHEMA = pa.schema([("line", pa.int64()), ("ok", pa.bool_()), ("answer", pa.string()), ("seconds", pa.float64())])
TABLE_BYTES = 4 * 1024 * 1024
"""Approximate limit of the answers that are read at once: any number of them may be in a chunk."""


def write(artifacts: Artifacts, answers: pa.Table) -> str:
    """Store the columns of SCHEMA of a table. Return the SHA-256 of the artifact."""
    with artifacts.create() as file:
        # Answers do not repeat, so no dictionaries. Their size in the file is then their size in memory.
        pq.write_table(
            answers.select(SCHEMA.names), file, compression="zstd", compression_level=1, use_dictionary=False
        )
    return file.sha256


def read(artifacts: Artifacts, sha256: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield these columns of a result chunk, or all of them, in tables of about TABLE_BYTES.

    Raises:
        UnavailableError: the store does not have the chunk or cannot be reached.
        BatchyardError: the chunk is damaged.
    """
    with parquet.opened(artifacts, sha256, "result chunk") as file:
        size = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
        rows = max(1, file.metadata.num_rows * TABLE_BYTES // max(1, size))
        names = SCHEMA.names if columns is None else columns
        older = "seconds" not in file.schema_arrow.names
        present = [name for name in names if not (older and name == "seconds")]
        for batch in file.iter_batches(rows, columns=present, use_threads=False):
            table = pa.Table.from_batches([batch])
            if older:
                table = table.append_column("seconds", pa.nulls(table.num_rows, pa.float64()))
            yield table.select(names)
