"""Parquet artifacts: opened for reading, with Arrow's errors translated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from batchyard.errors import BatchyardError
from store.artifacts import Artifacts

BUFFER_BYTES = 1024 * 1024


@contextmanager
def opened(
    artifacts: Artifacts, sha256: str, name: str, metadata: pq.FileMetaData | None = None
) -> Iterator[pq.ParquetFile]:
    """Open an artifact to read it piece by piece.

    Args:
        name: what errors call it.
        metadata: the file's, if it has been read before.

    Raises:
        UnavailableError: the store does not have it or cannot be reached.
        BatchyardError: it is damaged.
    """
    with artifacts.open(sha256) as file:
        try:
            yield pq.ParquetFile(file, metadata=metadata, pre_buffer=False, buffer_size=BUFFER_BYTES)
        except pa.ArrowException as error:
            raise BatchyardError(f"{name} {sha256} in {artifacts.url} cannot be read: {error}") from error
