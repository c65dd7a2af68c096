"""Result chunks: answers of one segment, as an immutable Parquet artifact.

Columns: line (int64, physical line number in the input), ok (bool: status 200), answer (string: the output line).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from store.artifacts import Artifacts

SCHEMA = pa.schema([("line", pa.int64()), ("ok", pa.bool_()), ("answer", pa.string())])


def write(artifacts: Artifacts, answers: pa.Table) -> str:
    """Store the columns of SCHEMA of a table. Return the SHA-256 of the artifact."""
    with artifacts.create() as file:
        pq.write_table(answers.select(SCHEMA.names), file, compression="zstd", compression_level=1)
    return file.sha256


def read(artifacts: Artifacts, sha256: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return these columns of a result chunk, or all of them.

    Raises:
        UnavailableError: the store does not have the chunk or cannot be reached.
    """
    with artifacts.open(sha256) as file:
        return pq.read_table(file, columns=columns)
