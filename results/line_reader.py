"""Lines of files, by the bytes at which they begin."""

from __future__ import annotations

from typing import IO

from batchyard.json_lines import MAX_LINE_BYTES
from results.filter import Numbers
from results.storage import Storage

SPAN_BYTES = 4 * 1024 * 1024


def max_line_bytes(storage: Storage) -> int:
    """Return the longest line that is shown: answers may be longer than requests."""
    return max(MAX_LINE_BYTES, storage.settings.max_line_bytes)


def read_lines(file: IO[bytes] | None, starts: Numbers, max_bytes: int) -> list[bytes]:
    """Return the lines that begin at these bytes, which ascend; empty ones if there is no file."""
    if file is None or not starts.size:
        return [b""] * starts.size
    first, span = int(starts[0]), int(starts[-1] - starts[0])
    if span <= SPAN_BYTES:
        file.seek(first)
        block = file.read(span) + file.readline(max_bytes)
        begins = (starts - first).tolist()
        ends = [block.find(b"\n", begin) for begin in begins]
        return [block[begin : end if end >= 0 else None] for begin, end in zip(begins, ends, strict=True)]
    lines = []
    for start in starts.tolist():
        file.seek(start)
        lines.append(file.readline(max_bytes))
    return lines
