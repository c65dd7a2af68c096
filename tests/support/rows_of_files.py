"""The rows of a batch, made from its files: what a merge must have written."""

from __future__ import annotations

from typing import IO

import pyarrow as pa

from batchyard import json_lines
from store.formats.results import AnswerReader
from store.formats.rows import SCHEMA, code


def of_files(source: IO[bytes], output: IO[bytes] | None, errors: IO[bytes] | None) -> pa.Table:
    """Return the rows of a batch from its files, each of which is parsed whole.

    Args:
        output, errors: None if the batch has no such file.
    """
    readers = ((True, AnswerReader(output)), (False, AnswerReader(errors)))
    rows: list[tuple[int, str, bool | None, str | None, int, int | None]] = []
    at = 0
    for line, raw in enumerate(source, 1):
        if not json_lines.is_blank(raw):
            custom_id = json_lines.read(raw)["custom_id"]
            ok, reader = next(
                ((ok, reader) for ok, reader in readers if reader.next.get("custom_id") == custom_id), (None, None)
            )
            place = None if reader is None else reader.offset
            answer = {} if reader is None else reader.take()
            rows.append((line, custom_id, ok, code(answer) if ok is False else None, at, place))
        at += len(raw)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
        if rows
        else [pa.array([], field.type) for field in SCHEMA],
        schema=SCHEMA,
    )
