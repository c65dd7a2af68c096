"""The plan: a Parquet artifact of a batch's requests in the order they run; each row group is one segment.

Columns: line (int64, physical line number in the input, from 1), custom_id (string), body (string: the request body
as JSON).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from store.artifacts import Artifacts, Writer

SCHEMA = pa.schema([("line", pa.int64()), ("custom_id", pa.string()), ("body", pa.string())])
# A row group is held in memory whole, so a segment of huge requests ends before it has all its rows.
SEGMENT_BYTES = 32 * 1024 * 1024


class PlanWriter:
    """Cuts requests into segments of one model each and writes them as they fill up."""

    def __init__(self, file: Writer, segment_requests: int) -> None:
        self._writer = pq.ParquetWriter(file, SCHEMA, compression="zstd", compression_level=1)
        self._segment_requests = segment_requests
        self._open: dict[str, tuple[list[int], list[str], list[bytes]]] = {}
        self._bytes: dict[str, int] = {}
        self.segments: list[tuple[str, int]] = []

    def add(self, model: str, line: int, custom_id: str, body: bytes) -> None:
        lines, custom_ids, bodies = self._open.setdefault(model, ([], [], []))
        lines.append(line)
        custom_ids.append(custom_id)
        bodies.append(body)
        self._bytes[model] = self._bytes.get(model, 0) + len(body)
        if len(lines) >= self._segment_requests or self._bytes[model] >= SEGMENT_BYTES:
            self._flush(model)

    def close(self) -> None:
        for model in list(self._open):
            self._flush(model)
        self._writer.close()

    def _flush(self, model: str) -> None:
        lines, custom_ids, bodies = self._open.pop(model)
        self._bytes.pop(model)
        # `body` is UTF-8 by construction; the cast checks it without making a Python string of each.
        table = pa.table(
            [pa.array(lines), pa.array(custom_ids), pa.array(bodies, pa.binary()).cast(pa.string())], SCHEMA
        )
        self._writer.write_table(table, row_group_size=len(lines))
        self.segments.append((model, len(lines)))


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
