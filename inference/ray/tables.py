"""The tables that a caller sends: answers, deaths of engines, and the error that ended its run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from batchyard.endpoints import output_lines
from batchyard.errors import EngineError, EngineStartError
from inference.answers import ANSWERS
from inference.deaths import Death
from inference.residents.replies import EngineReply

PACKED = "answers"
PACKED_BYTES = 32 * 1024 * 1024
"""Approximate limit of a packed table, which Arrow limits to 2 GiB."""
FAILED = -1
"""Line number of a table that holds the error that ended the run instead of answers."""
DIED = -2
"""Line number of a table that holds the death of an engine instead of answers."""


def answers(table: pa.Table, replies: list[EngineReply]) -> pa.Table:
    """Return the output lines (OpenAI's Batch API) of `table`'s rows, in its order."""
    lines = [
        output_lines.line(custom_id, reply.status_code, reply.body, reply.error)
        for custom_id, reply in zip(table.column("custom_id").to_pylist(), replies, strict=True)
    ]
    columns = {
        "line": table.column("line").cast(pa.int64()),
        "ok": [reply.status_code == 200 for reply in replies],
        "answer": lines,
    }
    measured = {name: [getattr(reply, name) for reply in replies] for name in ANSWERS.names if name not in columns}
    return pa.table(columns | measured, schema=ANSWERS)


def packed(answers: pa.Table) -> Iterator[pa.Table]:
    """Yield a table as packed ones.

    A packed table is one row, which Ray Data passes on at once; of several rows it would wait for more.
    """
    size = max(1, answers.num_rows * PACKED_BYTES // max(1, answers.nbytes))
    for at in range(0, answers.num_rows, size):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, answers.schema) as stream:
            stream.write_table(answers.slice(at, size))
        yield pa.table({PACKED: [sink.getvalue().to_pybytes()]})


def unpacked(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the tables of answers that were packed."""
    for packed in table.column(PACKED):
        yield pa.ipc.open_stream(packed.as_buffer()).read_all()


def failed(error: EngineError) -> pa.Table:
    """Return the table that stands for the error that ended the run. See `raise_failure`."""
    return _mark(FAILED, {"type": type(error).__name__, "message": error.message})


def died(death: Death) -> pa.Table:
    """Return the table that stands for the death of an engine. See `death`."""
    return _mark(DIED, asdict(death))


def death(answers: pa.Table) -> Death | None:
    """Return the death that this table stands for; None if it is none."""
    content = _marked(answers, DIED)
    return None if content is None else Death(**content)


def raise_failure(answers: pa.Table) -> None:
    """Raise the error that ended the run, if this table is one.

    Raises:
        EngineStartError, EngineError: as the caller met them.
    """
    failure = _marked(answers, FAILED)
    if failure is not None:
        kind = EngineStartError if failure["type"] == EngineStartError.__name__ else EngineError
        raise kind(failure["message"])


def _mark(line: int, content: dict[str, Any]) -> pa.Table:
    """Return a table that stands for something else than answers, marked by its line number."""
    return pa.Table.from_pylist([{"line": line, "ok": False, "answer": json.dumps(content)}], schema=ANSWERS)


def _marked(answers: pa.Table, line: int) -> dict[str, Any] | None:
    """Return the content of a table with this mark; None if it has another, or none."""
    if not answers.num_rows or answers.column("line")[0].as_py() != line:
        return None
    content: dict[str, Any] = json.loads(answers.column("answer")[0].as_py())
    return content
