"""The rows of a batch, made from its files: what a merge must have written."""

from __future__ import annotations

from collections import deque
from typing import IO, Any

import pyarrow as pa

from batchyard import json_lines
from store.formats.rows import SCHEMA, code


def of_files(source: IO[bytes], output: IO[bytes] | None, errors: IO[bytes] | None) -> pa.Table:
    """Return the rows of a batch from its files, each of which is parsed whole.

    Args:
        output, errors: None if the batch has no such file.
    """
    files = {True: _answers(output), False: _answers(errors)}
    rows: list[tuple[int, str, bool | None, str | None, int, int | None]] = []
    at = 0
    for line, raw in enumerate(source, 1):
        if not json_lines.is_blank(raw):
            custom_id = json_lines.read(raw)["custom_id"]
            is_next = (ok for ok, answers in files.items() if answers and answers[0][1].get("custom_id") == custom_id)
            ok = next(is_next, None)
            place, answer = (None, {}) if ok is None else files[ok].popleft()
            rows.append((line, custom_id, ok, code(answer) if ok is False else None, at, place))
        at += len(raw)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
        if rows
        else [pa.array([], field.type) for field in SCHEMA],
        schema=SCHEMA,
    )


def _answers(file: IO[bytes] | None) -> deque[tuple[int | None, dict[str, Any]]]:
    """Return the lines of a result file, each behind the byte at which it begins."""
    answers, at = deque[tuple[int | None, dict[str, Any]]](), 0
    for raw in file or ():
        answers.append((at, json_lines.loads(raw)))
        at += len(raw)
    return answers
