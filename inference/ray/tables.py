"""What a caller sends: answers as tables, deaths of engines, and the error that ended its run."""

import pickle
from collections.abc import Iterator
from typing import TypeAlias

import pyarrow as pa

from batchyard.endpoints import output_lines
from batchyard.errors import EngineError
from inference.answers import ANSWERS, Death
from inference.residents.replies import EngineReply

Sent: TypeAlias = pa.Table | Death | EngineError
PACKED = "answers"
PACKED_BYTES = 32 * 1024 * 1024
"""Approximate limit of a packed table, which Arrow limits to 2 GiB."""


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


def packed(sent: Sent) -> Iterator[pa.Table]:
    """Yield what a caller sends as tables of one row, pickled.

    Ray Data passes one row on at once; of several it would wait for more.
    """
    pieces = [sent]
    if isinstance(sent, pa.Table) and sent.nbytes > PACKED_BYTES:
        size = max(1, sent.num_rows * PACKED_BYTES // sent.nbytes)
        # Copies: a slice would be pickled with all of its table.
        pieces = [sent.take(pa.array(range(sent.num_rows)[at : at + size])) for at in range(0, sent.num_rows, size)]
    for piece in pieces:
        yield pa.table({PACKED: [pickle.dumps(piece)]})


def unpacked(table: pa.Table) -> Iterator[pa.Table | Death]:
    """Yield what was packed. Raises the EngineError that ended the run."""
    for packed in table.column(PACKED):
        sent: Sent = pickle.loads(packed.as_buffer())
        if isinstance(sent, EngineError):
            raise sent
        yield sent
