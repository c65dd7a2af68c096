"""Result chunks: answers of one segment, as an immutable Parquet artifact.

Columns: line (int64, physical line number in the input), ok (bool: status 200), answer (string: the output line),
seconds (float64: time in the engine, null if nobody measured it). A chunk with
embeddings has them apart from their answers, in a column that readers do not see (batchyard.endpoints.vectors): as text
they would be four times as large, and take 20 times the CPU to compress.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from batchyard.endpoints import vectors
from store.artifacts import Artifacts
from store.formats import parquet

SCHEMA = pa.schema([("line", pa.int64()), ("ok", pa.bool_()), ("answer", pa.string()), ("seconds", pa.float64())])
_VECTORS = "vectors"
_TEXT_BYTES = 3
"""Approximate size of a vector as text, in its own."""
TABLE_BYTES = 4 * 1024 * 1024
"""Approximate limit of the answers that are read at once: any number of them may be in a chunk."""


def write(artifacts: Artifacts, answers: pa.Table) -> str:
    """Store the columns of SCHEMA of a table, and its vectors if it has some. Return the SHA-256 of the artifact."""
    apart = _VECTORS in answers.column_names and answers[_VECTORS].null_count < answers.num_rows
    names = [*SCHEMA.names, _VECTORS] if apart else SCHEMA.names
    with artifacts.create() as file:
        # Answers do not repeat, so no dictionaries. Their size in the file is then their size in memory.
        pq.write_table(answers.select(names), file, use_dictionary=False, **parquet.WRITTEN)
    return file.sha256


def read(artifacts: Artifacts, sha256: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield these columns of a chunk, or all, in tables of TABLE_BYTES. Raises UnavailableError; BatchyardError."""
    with parquet.opened(artifacts, sha256, "result chunk") as file:
        size = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
        names = SCHEMA.names if columns is None else columns
        apart = _VECTORS in file.schema_arrow.names and "answer" in names
        if apart:
            size *= _TEXT_BYTES
        rows = max(1, file.metadata.num_rows * TABLE_BYTES // max(1, size))
        present = [*names, _VECTORS] if apart else list(names)
        for batch in file.iter_batches(rows, columns=present, use_threads=False):
            table = pa.Table.from_batches([batch])
            if apart:
                whole = map(vectors.put_back, table["answer"].to_pylist(), table[_VECTORS].to_pylist())
                table = table.set_column(table.column_names.index("answer"), "answer", pa.array(whole, pa.string()))
            yield table.select(names)
