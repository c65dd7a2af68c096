"""The requests of a batch that runs, from its plan and its result chunks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import IO

import numpy as np
import pyarrow as pa

from batchyard import json_lines
from results.cache import cached
from results.filter import Numbers
from results.line_reader import max_line_bytes, read_lines
from results.rows import Rows
from results.search import Raw
from results.storage import Storage
from store import segments
from store.formats import plan
from store.formats import rows as rows_file
from store.formats.chunks import read as read_chunk
from store.records import Batch

_NO_REQUESTS = pa.Table.from_batches([], pa.schema([("line", pa.int64()), ("custom_id", pa.string())]))
_NO_ANSWERS = pa.Table.from_batches([], pa.schema([("line", pa.int64()), ("ok", pa.bool_()), ("code", pa.string())]))


class UnmergedRows(Rows):
    """The requests of a batch that runs: those with an answer in the order in which these came, then the others."""

    def __init__(self, storage: Storage, batch: Batch, stack: ExitStack) -> None:
        self._artifacts, self._batch, self._stack = storage.artifacts, batch, stack
        self._max_line_bytes = max_line_bytes(storage)
        self._source: IO[bytes] | None = None
        with storage.database.read() as session:
            self._chunks = [sha256 for sha256, _ in segments.chunks(session, batch.id)]
            self._plans = segments.plans(session, batch.id)
        pieces = [self._planned(*place) for place in self._plans]
        requests = pa.concat_tables([_NO_REQUESTS, *pieces])
        self._segments = np.repeat(np.arange(len(pieces)), [piece.num_rows for piece in pieces])
        answered = pa.concat_tables([_NO_ANSWERS, *map(self._answered, self._chunks)])
        lines, places = requests["line"].to_numpy(), answered["line"].to_numpy()
        order = np.argsort(lines)
        mine = order[np.searchsorted(lines, places, sorter=order)] if lines.size else np.zeros(0, np.int64)
        waits = np.ones(lines.size, np.bool_)
        waits[mine] = False
        self._requests = np.concatenate([mine, order[waits[order]]])
        nulls = lines.size - places.size
        chunk_of = np.repeat(np.arange(len(self._chunks)), [self._answered(sha).num_rows for sha in self._chunks])
        self._chunk_of = chunk_of
        self.table = pa.table(
            {
                **{name: requests[name].take(pa.array(self._requests)) for name in ("line", "custom_id")},
                **{
                    name: pa.chunked_array([*answered[name].chunks, pa.nulls(nulls, answered[name].type)])
                    for name in ("ok", "code")
                },
            }
        )

    def _planned(self, plan_sha256: str, row_group: int) -> pa.Table:
        def read() -> pa.Table:
            return next(plan.requests(self._artifacts, [(plan_sha256, row_group)]))

        return cached((self._artifacts, plan_sha256, row_group), read)

    def _answered(self, sha256: str) -> pa.Table:
        """Return line, ok and code of each answer of a chunk."""

        def read() -> pa.Table:
            table = pa.concat_tables(read_chunk(self._artifacts, sha256, ["line", "ok"]))
            codes: list[str | None] = [None] * table.num_rows
            failed = np.flatnonzero(~table["ok"].to_numpy())
            if failed.size:
                answers = pa.concat_tables(read_chunk(self._artifacts, sha256, ["answer"])).take(pa.array(failed))
                for row, answer in zip(failed.tolist(), answers["answer"].to_pylist(), strict=True):
                    codes[row] = rows_file.code(json_lines.loads(answer))
            return table.append_column("code", pa.array(codes, pa.string()))

        return cached((self._artifacts, sha256), read)

    def raw(self, positions: Numbers) -> list[Raw]:
        requests = self._read_requests(positions)
        answers: dict[int, tuple[bytes, float | None]] = {}
        answered = positions[positions < self._chunk_of.size]
        for chunk in np.unique(self._chunk_of[answered]).tolist():
            members = answered[self._chunk_of[answered] == chunk]
            table = pa.concat_tables(read_chunk(self._artifacts, self._chunks[chunk], ["answer", "seconds"]))
            first = int(np.searchsorted(self._chunk_of, chunk))
            for position, entry in zip(
                members.tolist(), table.take(pa.array(members - first)).to_pylist(), strict=True
            ):
                answers[position] = (entry["answer"].encode(), entry["seconds"])
        return [
            Raw(request, *answers.get(position, (b"", None)))
            for position, request in zip(positions.tolist(), requests, strict=True)
        ]

    def _read_requests(self, positions: Numbers) -> list[bytes]:
        if not self._batch.input_sha256:
            return self._read_planned(self._requests[positions])
        sha256 = self._batch.input_sha256
        if self._source is None:
            self._source = self._stack.enter_context(self._artifacts.open(sha256))
        source = self._source
        starts = cached((self._artifacts, sha256), lambda: rows_file.starts(source))
        places = starts[self._lines[positions] - 1]
        order = np.argsort(places)
        lines = np.full(positions.size, b"", object)
        lines[order] = np.fromiter(read_lines(source, places[order], self._max_line_bytes), object, positions.size)
        return lines.tolist()

    def _read_planned(self, requests: Numbers) -> list[bytes]:
        """Return requests of a job's batch, which has no input yet, as lines of it with their body only."""
        bodies: dict[int, bytes] = {}
        for segment in np.unique(self._segments[requests]).tolist():
            members = requests[self._segments[requests] == segment]
            columns = ["line", "body", "same_as"]
            table = next(plan.requests(self._artifacts, [self._plans[segment]], columns))
            rows = plan.body_rows(table).take(pa.array(members - int(np.searchsorted(self._segments, segment))))
            for request, body in zip(members.tolist(), table["body"].take(rows).to_pylist(), strict=True):
                bodies[request] = b'{"body":%s}' % body.encode()
        return [bodies[request] for request in requests.tolist()]
