"""Vectors in files, by their suffix: Parquet beside the columns of their rows, or .npy alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchyard.client import frames, output_files, tables
from batchyard.client.embed import CHUNK, Vectors
from batchyard.errors import ConfigurationError

COLUMNS = ("embedding", "error", "tokens")


def check_output(file: Path) -> None:
    """Raise ConfigurationError for a file whose name is neither .parquet nor .npy."""
    if file.suffix not in (".parquet", ".npy"):
        raise ConfigurationError(f"{file}: its name does not tell how to write vectors; name it .parquet or .npy")


def write(file: Path, source: Path, vectors: Vectors, prefix: str) -> None:
    """Write the vectors of the rows of `source`, whole or not at all."""
    try:
        with output_files.written(file) as part, part.open("wb") as stream:
            if file.suffix == ".npy":
                _write_npy(stream, vectors)
            else:
                _write_parquet(stream, source, vectors, prefix)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}; name a file that can be written") from error


def _write_npy(stream: IO[bytes], vectors: Vectors) -> None:
    shape = len(vectors), vectors.dimensions
    header = {"descr": vectors.dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[no-untyped-call]
    missing = np.full(vectors.dimensions, np.nan, vectors.dtype).tobytes()
    for chunk in vectors.chunks():
        stream.writelines(missing if vector is None else vector.tobytes() for vector in chunk)


def _write_parquet(stream: IO[bytes], source: Path, vectors: Vectors, prefix: str) -> None:
    embedding = pa.list_(pa.from_numpy_dtype(vectors.dtype), vectors.dimensions or -1)
    kinds = dict(zip(COLUMNS, (embedding, pa.string(), pa.int64()), strict=True))
    chunks, writer, start = vectors.chunks(), None, 0
    for table in tables.batches(source, CHUNK):
        chunk = next(chunks, [])
        if table.num_rows != len(chunk):
            break
        end = start + len(chunk)
        new: tuple[Sequence[Any], ...] = (chunk, vectors.errors[start:end], vectors.tokens[start:end])
        for (name, kind), values in zip(kinds.items(), new, strict=True):
            column = frames.vectors(values).cast(kind) if name == "embedding" else pa.array(values, kind)
            table = table.append_column(pa.field(prefix + name, kind), column)
        writer = writer or pq.ParquetWriter(stream, table.schema)
        writer.write_table(table)
        start = end
    if writer is None or start != len(vectors):
        raise ConfigurationError(f"{source} has changed meanwhile; the same command again goes on with its rows")
    writer.close()
