"""Rows: an artifact of a batch that says what became of each request, and where its lines are.

Columns, a row for each request in input order:
    line: int64, physical line number in the input, from 1.
    custom_id: string.
    ok: bool, status 200; null if neither result file has the request.
    code: string, of its error; null if it has none.
    source: int64, byte of the input file at which its line begins.
    answer: int64, byte of the output file, or of the error file unless `ok`, at which its line begins.
"""

from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from batchyard.endpoints import output_lines
from batchyard.wording import cut
from store.artifacts import Artifacts, ArtifactWriter
from store.formats import parquet

SCHEMA = pa.schema(
    [
        ("line", pa.int64()),
        ("custom_id", pa.string()),
        ("ok", pa.bool_()),
        ("code", pa.string()),
        ("source", pa.int64()),
        ("answer", pa.int64()),
    ]
)
GROUP_ROWS = 100_000
BLOCK_BYTES = 4 * 1024 * 1024
MAX_CODE = 100
"""Most characters of a code: an engine's may be any text."""


def write(file: ArtifactWriter, rows: pa.Table) -> None:
    """Write the columns of SCHEMA."""
    pq.write_table(rows, file, row_group_size=GROUP_ROWS, **parquet.WRITTEN)


def read(artifacts: Artifacts, sha256: str) -> pa.Table:
    """Return the rows, about 50 bytes each and custom_ids. Raises UnavailableError; BatchyardError if damaged."""
    with parquet.opened(artifacts, sha256, "rows") as file:
        return file.read(use_threads=False)


def code(answer: Mapping[str, Any]) -> str:
    """Return the code of a parsed output line that is an error."""
    return cut(output_lines.reason(answer)[0], MAX_CODE)


def starts(file: IO[bytes]) -> npt.NDArray[np.int64]:
    """Return where each line of a file begins, and its end if that is a line feed."""
    pieces, at = [np.zeros(1, np.int64)], 0
    while block := file.read(BLOCK_BYTES):
        pieces.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + (at + 1))
        at += len(block)
    return np.concatenate(pieces)
