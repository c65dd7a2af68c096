"""The plan: a Parquet artifact of a batch's requests in the order they run; each row group is one segment.

Columns: line (int64, physical line number in the input, from 1), custom_id (string), body (string: the request body
as JSON), same_as (int64: the line in this segment whose answer is this one's too; null for a request that runs, and
only such a request has a body), fingerprint (binary: inference.requests.ordering; null where chance decides).
"""

from __future__ import annotations

import array
import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from store.artifacts import Artifacts, Writer
from store.batches import PlannedSegment
from store.formats import chunks
from store.formats.request_sorter import Queue, RequestSorter, Row
from store.speeds import RequestClass

SCHEMA = pa.schema(
    [
        ("line", pa.int64()),
        ("custom_id", pa.string()),
        ("body", pa.string()),
        ("same_as", pa.int64()),
        ("fingerprint", pa.binary()),
    ]
)
# A row group is held in memory whole, so a segment of huge requests ends before it has all its rows.
SEGMENT_BYTES = 32 * 1024 * 1024
# With these a segment is told to be more of reading prompts or more of writing answers; no count depends on them.
BYTES_PER_TOKEN = 4
ORDINARY_OUTPUT = 256
# A request that may be answered with so many times the mean is long, and should not be the last to begin.
LONG = 2


def request_class(size: int, output_tokens: int) -> RequestClass:
    """Whether requests with bodies of `size` bytes are more work to read than to answer with so many tokens."""
    return "prefill" if size / BYTES_PER_TOKEN > output_tokens else "decode"


class SegmentSize(NamedTuple):
    """The most requests that run in one segment, and bytes of their bodies."""

    requests: int
    bytes: int = SEGMENT_BYTES


class PlanWriter:
    """Sorts requests so that those that begin alike meet in the engine, and cuts them into segments of one model each.

    Sorting goes through a file: memory does not grow with the batch. Requests with the same fingerprint stand together
    in one segment, where one of them runs.

    Attributes:
        segments: row group by row group.
        refused: by number, the segments that need not run, each with the SHA-256 of the part that holds its answers.
    """

    def __init__(self, file: Writer, sizes: Mapping[str, SegmentSize], artifacts: Artifacts | None = None) -> None:
        """`sizes`: of a segment, by model. `artifacts`: where refusals go."""
        # Bodies do not repeat, and only lines are ever looked up by their range.
        self._writer = pq.ParquetWriter(
            file, SCHEMA, compression="zstd", compression_level=1, use_dictionary=False, write_statistics=["line"]
        )
        self._sizes = sizes
        self._artifacts = artifacts
        self._sorter = RequestSorter()
        self._queues: dict[tuple[str, bool], int] = {}
        self.segments: list[PlannedSegment] = []
        self.refused: dict[int, str] = {}

    def add(
        self,
        model: str,
        line: int,
        custom_id: str,
        body: bytes,
        answer: str | None = None,
        *,
        output_limit: int | None = None,
        order_key: bytes = b"",
        fingerprint: bytes | None = None,
    ) -> None:
        """Add a request.

        Args:
            answer: the output line of a request that is refused; such requests make up segments of their own.
            output_limit: most tokens it may be answered with; None if it does not say.
            order_key, fingerprint: see inference.requests.ordering.
        """
        queue = self._queues.setdefault((model, answer is not None), len(self._queues))
        refused = None if answer is None else answer.encode()
        tokens = ORDINARY_OUTPUT if output_limit is None else output_limit
        fingerprint = fingerprint if answer is None else None  # a refusal names its custom_id
        self._sorter.add((queue, order_key, fingerprint, line, tokens, custom_id.encode(), body, refused))

    def close(self) -> None:
        """Write the plan."""
        with closing(self._sorter) as sorter:
            totals = sorter.queues()
            for (model, _), queue in self._queues.items():
                self._cut(model, totals[queue], sorter.sorted(queue))
        self._writer.close()

    def discard(self) -> None:
        """Forget what was added."""
        self._sorter.close()
        self._writer.close()

    def _cut(self, model: str, queue: Queue, requests: Iterator[Row]) -> None:
        # Segments of one size, so that the last is not too small to keep an engine busy beside another.
        most = self._sizes[model]
        size = math.ceil(queue.runs / math.ceil(queue.runs / most.requests))
        rows = _Rows()
        leader: tuple[bytes, int] | None = None
        for _, _, fingerprint, line, tokens, custom_id, body, answer in requests:
            if leader is not None and leader[0] == fingerprint:
                rows.add(line, custom_id, b"", leader[1], fingerprint, 0, answer)
                continue
            if rows.runs >= size or len(rows.bodies.data) + len(rows.custom_ids.data) >= most.bytes:
                self._flush(model, rows)
                rows = _Rows()
            leader = None if fingerprint is None else (fingerprint, line)
            rows.add(line, custom_id, body, None, fingerprint, tokens, answer)
        self._flush(model, rows, long=LONG * queue.tokens / queue.requests)

    def _flush(self, model: str, rows: _Rows, long: float | None = None) -> None:
        """Write a segment; the last one of a model with its long requests first, lest the end waits for one of them."""
        table = rows.table()
        if long is not None and any(tokens > long for tokens in rows.output_tokens):
            late = np.array(rows.output_tokens) <= long
            table = table.take(pa.array(np.argsort(late, kind="stable")))
        self._writer.write_table(table, row_group_size=table.num_rows)
        if len(rows.answers.ends) > 1:
            self.refused[len(self.segments)] = self._part(rows)
        size = len(rows.bodies.data)
        kind = request_class(size, sum(rows.output_tokens))
        self.segments.append(PlannedSegment(model, table.num_rows, size, kind))

    def _part(self, rows: _Rows) -> str:
        if self._artifacts is None:
            raise ValueError("a plan with refused requests needs artifacts")
        oks = pa.array(np.zeros(len(rows.lines), dtype=bool))
        table = pa.Table.from_arrays([_numbers(rows.lines), oks, rows.answers.column()], schema=chunks.SCHEMA)
        return chunks.write(self._artifacts, table)


class _Texts:
    """A column of UTF-8 texts, one behind the other: as thousands of objects they would take several times the room."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends = array.array("i", [0])

    def append(self, text: bytes) -> None:
        self.data += text
        self.ends.append(len(self.data))

    def column(self) -> pa.StringArray:
        return pa.StringArray.from_buffers(len(self.ends) - 1, pa.py_buffer(self.ends), pa.py_buffer(self.data))


@dataclass
class _Rows:
    """The requests of a segment that is not full yet; `runs` of them are run."""

    lines: array.array[int] = field(default_factory=lambda: array.array("q"))
    custom_ids: _Texts = field(default_factory=_Texts)
    bodies: _Texts = field(default_factory=_Texts)
    same_as: list[int | None] = field(default_factory=list)
    fingerprints: list[bytes | None] = field(default_factory=list)
    output_tokens: array.array[int] = field(default_factory=lambda: array.array("q"))
    answers: _Texts = field(default_factory=_Texts)
    runs: int = 0

    def add(
        self,
        line: int,
        custom_id: bytes,
        body: bytes,
        same_as: int | None,
        fingerprint: bytes | None,
        output_tokens: int,
        answer: bytes | None,
    ) -> None:
        self.lines.append(line)
        self.custom_ids.append(custom_id)
        self.bodies.append(body)
        self.same_as.append(same_as)
        self.fingerprints.append(fingerprint)
        self.output_tokens.append(output_tokens)
        self.runs += same_as is None
        if answer is not None:
            self.answers.append(answer)

    def table(self) -> pa.Table:
        columns = [_numbers(self.lines), self.custom_ids.column(), self.bodies.column()]
        columns += [pa.array(self.same_as, pa.int64()), pa.array(self.fingerprints, pa.binary())]
        return pa.Table.from_arrays(columns, schema=SCHEMA)


def _numbers(values: array.array[int]) -> pa.Int64Array:
    return pa.Int64Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def segment(artifacts: Artifacts, plan_sha256: str, number: int) -> pa.Table:
    """The requests of one segment."""
    with artifacts.open(plan_sha256) as file:
        return pq.ParquetFile(file).read_row_group(number)


def last_line(artifacts: Artifacts, plan_sha256: str) -> int:
    """The highest line number of a plan, from its row groups' statistics: no row is read."""
    with artifacts.open(plan_sha256) as file:
        metadata = pq.ParquetFile(file).metadata
    column = SCHEMA.get_field_index("line")
    return max(int(metadata.row_group(n).column(column).statistics.max) for n in range(metadata.num_row_groups))


def requests(artifacts: Artifacts, plan_sha256: str) -> Iterator[pa.Table]:
    """Line and custom_id of every request, segment by segment."""
    with artifacts.open(plan_sha256) as file:
        parquet = pq.ParquetFile(file)
        for number in range(parquet.num_row_groups):
            yield parquet.read_row_group(number, columns=["line", "custom_id"])
