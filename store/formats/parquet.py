"""Parquet artifacts: opened for reading, with Arrow's errors translated."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchyard.errors import ArtifactMissing, BatchyardError
from store.artifacts import Artifacts

BUFFER_BYTES = 1024 * 1024
WRITTEN: Mapping[str, Any] = {"compression": "zstd", "compression_level": 1, "write_page_checksum": True}
"""How artifacts are written that are read here and there: each of their pages is checked when it is read."""


@contextmanager
def opened(
    artifacts: Artifacts, sha256: str, name: str, metadata: pq.FileMetaData | None = None
) -> Iterator[pq.ParquetFile]:
    """Open an artifact, which errors call `name`, to read it piece by piece. `metadata` saves reading that again.

    Raises UnavailableError; BatchyardError: it is damaged.
    """
    with artifacts.open(sha256) as file:
        try:
            yield pq.ParquetFile(
                file, metadata=metadata, pre_buffer=False, buffer_size=BUFFER_BYTES, page_checksum_verification=True
            )
        except (pa.ArrowException, OSError, ArtifactMissing) as error:
            raise BatchyardError(f"{name} {sha256} in {artifacts.url} cannot be read: {error}") from error
