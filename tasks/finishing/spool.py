"""Spool: texts of numbered lines in a local file, written in the order of lines.

Memory holds no more than READ_BYTES of texts, or one text if that is longer, and about 20 bytes for each line.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchyard.errors import UnavailableError
from store.artifacts import ArtifactWriter

READ_BYTES = 4 * 1024 * 1024

Numbers = npt.NDArray[np.int64]


class Spool:
    """Texts in a local file, in order of arrival, and where each of them is."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._lines = [np.zeros(0, np.int64)]
        self._sizes = [np.zeros(0, np.int32)]

    def add(self, lines: Numbers, texts: pa.StringArray) -> None:
        """Add the texts of these lines. Raises UnavailableError if the disk is full."""
        _, offsets, text = texts.buffers()
        ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        try:
            self._file.write(memoryview(text)[ends[0] : ends[-1]])
            self._file.flush()
        except OSError as error:
            raise UnavailableError(f"{tempfile.gettempdir()}: no room for the lines to sort: {error}") from error
        self._lines.append(lines)
        self._sizes.append(np.diff(ends))

    def lines(self) -> Numbers:
        """Return the line of each text, in order of arrival."""
        return np.concatenate(self._lines)

    def sizes(self) -> npt.NDArray[np.int64]:
        return np.concatenate(self._sizes).astype(np.int64)

    def write(self, file: ArtifactWriter, chosen: npt.NDArray[np.bool_] | None = None) -> int:
        """Write chosen or all texts, each with a line feed, in line order. Return how many."""
        lines, sizes = self.lines(), self.sizes()
        starts = np.cumsum(sizes) - sizes
        rows = np.arange(lines.size) if chosen is None else np.flatnonzero(chosen)
        rows = rows[np.argsort(lines[rows])]
        pieces = np.cumsum(sizes[rows]) // READ_BYTES
        for piece in np.split(rows, np.flatnonzero(np.diff(pieces)) + 1):
            places = zip(sizes[piece].tolist(), starts[piece].tolist(), strict=True)
            texts = [os.pread(self._file.fileno(), size, start) for size, start in places]
            if texts:
                file.write(b"\n".join([*texts, b""]))
        return rows.size


@contextmanager
def opened() -> Iterator[Spool]:
    """Open a spool, whose file is gone afterwards."""
    with tempfile.TemporaryFile(prefix="batchyard-merge-") as file:
        yield Spool(file)
