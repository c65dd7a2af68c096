"""Parts: answers of one segment, as an immutable Parquet artifact.

Columns: line (int64, physical line number in the input), ok (bool: status 200), answer (string: the output line).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from store.artifacts import Artifacts

SCHEMA = pa.schema([("line", pa.int64()), ("ok", pa.bool_()), ("answer", pa.string())])


def write(artifacts: Artifacts, answers: pa.Table) -> str:
    """Store the columns of SCHEMA of a table; the SHA-256."""
    with artifacts.create() as file:
        pq.write_table(answers.select(SCHEMA.names), file, compression="zstd", compression_level=1)
    return file.sha256
