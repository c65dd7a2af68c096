"""The lines of JSONL files: request files, output files and error files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

MAX_LINE_BYTES = 16 * 1024 * 1024


def numbered_lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield physical line numbers, from 1, and lines that are not blank.

    A line longer than MAX_LINE_BYTES, blank or not, is cut to MAX_LINE_BYTES + 1 bytes, so that the caller can tell.
    """
    number = 0
    while raw := source.readline(MAX_LINE_BYTES + 1):
        number += 1
        rest = raw
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = source.readline(MAX_LINE_BYTES + 1)
        if raw.strip() or len(raw) > MAX_LINE_BYTES:
            yield number, raw
