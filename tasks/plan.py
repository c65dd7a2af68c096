"""The plan: a Parquet artifact of a batch's requests in the order they run; each row group is one segment.

Columns: line (int64, physical line number in the input, from 1), custom_id (string), body (string: the request body
as JSON).
"""

from __future__ import annotations

import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from store.artifacts import Artifacts, Writer
from store.batches import PlannedSegment
from store.speeds import RequestClass
from tasks import parts

SCHEMA = pa.schema([("line", pa.int64()), ("custom_id", pa.string()), ("body", pa.string())])
# A row group is held in memory whole, so a segment of huge requests ends before it has all its rows.
SEGMENT_BYTES = 32 * 1024 * 1024
# With these a segment is told to be more of reading prompts or more of writing answers; no count depends on them.
BYTES_PER_TOKEN = 4
ORDINARY_OUTPUT = 256


def request_class(size: int, output_tokens: int) -> RequestClass:
    """Whether requests with bodies of `size` bytes are more work to read than to answer with so many tokens."""
    return "prefill" if size / BYTES_PER_TOKEN > output_tokens else "decode"


class PlanWriter:
    """Cuts requests into segments of one model each and writes them as they fill up.

    Attributes:
        segments: row group by row group.
        refused: by number, the segments that need not run, each with the SHA-256 of the part that holds its answers.
    """

    def __init__(self, file: Writer, segment_requests: int, artifacts: Artifacts | None = None) -> None:
        """`artifacts`: where parts go; only needed if requests are added with their answer."""
        # Bodies do not repeat, and only lines are ever looked up by their range.
        self._writer = pq.ParquetWriter(
            file, SCHEMA, compression="zstd", compression_level=1, use_dictionary=False, write_statistics=["line"]
        )
        self._segment_requests = segment_requests
        self._artifacts = artifacts
        self._open: dict[tuple[str, bool], _Rows] = {}
        self.segments: list[PlannedSegment] = []
        self.refused: dict[int, str] = {}

    def add(
        self,
        model: str,
        line: int,
        custom_id: str,
        body: bytes,
        answer: str | None = None,
        output_limit: int | None = None,
    ) -> None:
        """Add a request.

        Args:
            answer: the output line of a request that is refused; such requests make up segments of their own.
            output_limit: most tokens it may be answered with; None if it does not say.
        """
        key = model, answer is not None
        rows = self._open.get(key)
        if rows is None:
            rows = self._open[key] = _Rows()
        rows.lines.append(line)
        rows.custom_ids.append(custom_id.encode())
        rows.bodies.append(body)
        rows.output_tokens += ORDINARY_OUTPUT if output_limit is None else output_limit
        if answer is not None:
            rows.answers.append(answer.encode())
        size = len(rows.custom_ids.data) + len(rows.bodies.data)
        if len(rows.lines) >= self._segment_requests or size >= SEGMENT_BYTES:
            self._flush(key)

    def close(self) -> None:
        for key in list(self._open):
            self._flush(key)
        self._writer.close()

    def _flush(self, key: tuple[str, bool]) -> None:
        rows = self._open.pop(key)
        table = pa.Table.from_arrays(
            [_numbers(rows.lines), rows.custom_ids.column(), rows.bodies.column()], schema=SCHEMA
        )
        self._writer.write_table(table, row_group_size=table.num_rows)
        if len(rows.answers.ends) > 1:
            self.refused[len(self.segments)] = self._part(rows)
        size = len(rows.bodies.data)
        kind = request_class(size, rows.output_tokens)
        self.segments.append(PlannedSegment(key[0], table.num_rows, size, kind))

    def _part(self, rows: _Rows) -> str:
        if self._artifacts is None:
            raise ValueError("a plan with refused requests needs artifacts")
        oks = pa.array(np.zeros(len(rows.lines), dtype=bool))
        table = pa.Table.from_arrays([_numbers(rows.lines), oks, rows.answers.column()], schema=parts.SCHEMA)
        return parts.write(self._artifacts, table)


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
    """The requests of a segment that is not full yet."""

    lines: array.array[int] = field(default_factory=lambda: array.array("q"))
    custom_ids: _Texts = field(default_factory=_Texts)
    bodies: _Texts = field(default_factory=_Texts)
    answers: _Texts = field(default_factory=_Texts)
    output_tokens: int = 0


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
