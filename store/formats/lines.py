"""The lines of JSONL files: request files, output files and error files."""

from collections.abc import Iterator
from typing import IO

from batchyard import json_lines
from batchyard.json_lines import MAX_LINE_BYTES

_CHUNK = 1 << 20


def numbered_lines(source: IO[bytes], max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield physical line numbers, from 1, and lines that are not blank.

    A line longer than `max_bytes`, blank or not, is cut to `max_bytes` + 1 bytes, so that the caller can tell.
    """
    number = 0
    while raw := source.readline(max_bytes + 1):
        number += 1
        rest = raw
        while rest and len(raw) > max_bytes and not rest.endswith(b"\n"):
            rest = source.readline(_CHUNK)
        if len(raw) > max_bytes or not json_lines.is_blank(raw):
            yield number, raw
