"""Plans: a Parquet artifact of requests in running order; a row group is a segment.

Columns:
    line: int64, physical line number in the input, from 1.
    custom_id: string.
    body: string, the request body as JSON; empty for a duplicate.
    same_as: int64, for a duplicate the line in this segment whose answer it shares; null for a request that runs.
    fingerprint: binary, see inference.requests.ordering; null where sampling makes answers differ.
"""

from __future__ import annotations

import array
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from store.artifacts import Artifacts, ArtifactWriter
from store.formats import chunks, parquet
from store.formats.spill import RequestSorter, Row, SortedQueue
from store.records import Segment
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
# A row group is held in memory whole, so a segment of huge requests has fewer rows.
SEGMENT_BYTES = 32 * 1024 * 1024
# Estimates that only the request class of a segment depends on.
BYTES_PER_TOKEN = 4
ORDINARY_OUTPUT = 256
# A request with more duplicates runs more than once: an answer is stored together with all of its copies.
MAX_DUPLICATES = 500
# A request whose output limit is more than so many times the mean is long, and should not be the last to begin.
LONG = 2


def request_class(size: int, output_tokens: int) -> RequestClass:
    """Return "prefill" if bodies of `size` bytes have more tokens than their answers may have, else "decode"."""
    return "prefill" if size / BYTES_PER_TOKEN > output_tokens else "decode"


class SegmentSize(NamedTuple):
    """Limits of one segment: requests that run, and bytes of their bodies and custom_ids."""

    requests: int
    bytes: int = SEGMENT_BYTES


class PlanWriter:
    """Sorts requests and cuts them into segments of one model each, row group by row group.

    Requests with a common prefix stand next to each other, for the engine's prefix cache. Requests with the same
    fingerprint stand together in one segment, where one of them runs. `refused` has the SHA-256 of the result chunk of
    each segment that need not run, by number; the first `sample_segments` have the sample.
    """

    def __init__(
        self, file: ArtifactWriter, sizes: Mapping[str, SegmentSize], artifacts: Artifacts | None = None
    ) -> None:
        """`sizes`: limits of a segment, by model. `artifacts`: store for the answers of refused requests."""
        # Bodies do not repeat, so no dictionaries. Nobody reads statistics.
        self._writer = pq.ParquetWriter(file, SCHEMA, use_dictionary=False, write_statistics=False, **parquet.WRITTEN)
        self._sizes = sizes
        self._artifacts = artifacts
        self._sorter = RequestSorter()
        self._queues: dict[tuple[bool, str | None, bool], int] = {}
        self.segments: list[Segment] = []
        self.refused: dict[int, str] = {}
        self.sample_segments = 0

    def add(
        self,
        model: str | None,
        line: int,
        custom_id: str,
        body: bytes,
        answer: str | None = None,
        *,
        output_limit: int | None = None,
        order_key: bytes = b"",
        fingerprint: bytes | None = None,
        sampled: bool = False,
    ) -> None:
        """Add a request, with its body as JSON.

        Args:
            model: None for a line that is no valid request; it counts among the requests of the plan's first model.
            answer: the output line if the request is refused; refused requests form separate segments.
            output_limit: most tokens of the answer; None if the request sets no limit.
            order_key, fingerprint: see inference.requests.ordering.
            sampled: it stands in segments of its own, before all others.
        """
        queue = self._queues.setdefault((not sampled, model, answer is not None), len(self._queues))
        refused = None if answer is None else answer.encode()
        tokens = ORDINARY_OUTPUT if output_limit is None else output_limit
        fingerprint = fingerprint if answer is None else None  # each refusal names its custom_id
        self._sorter.add((queue, order_key, fingerprint, line, tokens, custom_id.encode(), body, refused))

    def close(self) -> None:
        """Write the plan. It has at least one valid request."""
        first = next(model for _, model, _ in self._queues if model is not None) if self._queues else ""
        with closing(self._sorter) as sorter:
            totals = sorter.queues()
            for (later, model, _), queue in sorted(self._queues.items(), key=lambda entry: entry[0][0]):
                self._cut(model or first, totals[queue], sorter.sorted(queue))
                self.sample_segments = self.sample_segments if later else len(self.segments)
        self._writer.close()

    def discard(self) -> None:
        self._sorter.close()
        self._writer.close()

    def _cut(self, model: str, queue: SortedQueue, requests: Iterator[Row]) -> None:
        # Segments of equal size: a small last one could not keep its engine busy.
        limit = self._sizes[model]
        size = math.ceil(queue.runs / math.ceil(queue.runs / limit.requests))
        rows = _OpenSegment()
        leader: tuple[bytes, int] | None = None
        duplicates = 0
        for _, _, fingerprint, line, tokens, custom_id, body, answer in requests:
            if leader is not None and leader[0] == fingerprint and duplicates < MAX_DUPLICATES:
                duplicates += 1
                rows.add(line, custom_id, b"", leader[1], fingerprint, 0, answer)
                continue
            if rows.runs >= size or len(rows.bodies.data) + len(rows.custom_ids.data) >= limit.bytes:
                self._flush(model, rows)
                rows = _OpenSegment()
            leader, duplicates = None if fingerprint is None else (fingerprint, line), 0
            rows.add(line, custom_id, body, None, fingerprint, tokens, answer)
        self._flush(model, rows, long=LONG * queue.tokens / queue.requests)

    def _flush(self, model: str, rows: _OpenSegment, long: float | None = None) -> None:
        """Write a segment; with `long`, requests with more output tokens than that come first.

        The last segment of a model is written so: its end should not wait for one long request.
        """
        table = rows.table()
        if long is not None and any(tokens > long for tokens in rows.output_tokens):
            short = np.array(rows.output_tokens) <= long
            table = table.take(pa.array(np.argsort(short, kind="stable")))
        self._writer.write_table(table, row_group_size=table.num_rows)
        if len(rows.answers.ends) > 1:
            self.refused[len(self.segments)] = self._write_chunk(rows)
        size = len(rows.bodies.data)
        kind = request_class(size, sum(rows.output_tokens))
        self.segments.append(Segment(model=model, requests=table.num_rows, bytes=size, request_class=kind))

    def _write_chunk(self, rows: _OpenSegment) -> str:
        if self._artifacts is None:
            raise ValueError("a plan with refused requests needs artifacts")
        oks = pa.array(np.zeros(len(rows.lines), dtype=bool))
        columns = [_numbers(rows.lines), oks, rows.answers.column(), pa.nulls(len(oks), pa.float64())]
        table = pa.Table.from_arrays(columns, schema=chunks.SCHEMA)
        return chunks.write(self._artifacts, table)


class _Texts:
    """A column of UTF-8 texts in one buffer: thousands of objects would take several times the memory."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends = array.array("i", [0])

    def append(self, text: bytes) -> None:
        self.data += text
        self.ends.append(len(self.data))

    def column(self) -> pa.StringArray:
        return pa.StringArray.from_buffers(len(self.ends) - 1, pa.py_buffer(self.ends), pa.py_buffer(self.data))


@dataclass
class _OpenSegment:
    """The requests of a segment that is not full yet. `runs` counts those that run."""

    lines: array.array[int] = field(default_factory=lambda: array.array("q"))
    custom_ids: _Texts = field(default_factory=_Texts)
    bodies: _Texts = field(default_factory=_Texts)
    duplicate_of: list[int | None] = field(default_factory=list)
    fingerprints: list[bytes | None] = field(default_factory=list)
    output_tokens: array.array[int] = field(default_factory=lambda: array.array("q"))
    answers: _Texts = field(default_factory=_Texts)
    runs: int = 0

    def add(
        self,
        line: int,
        custom_id: bytes,
        body: bytes,
        duplicate_of: int | None,
        fingerprint: bytes | None,
        output_tokens: int,
        answer: bytes | None,
    ) -> None:
        self.lines.append(line)
        self.custom_ids.append(custom_id)
        self.bodies.append(body)
        self.duplicate_of.append(duplicate_of)
        self.fingerprints.append(fingerprint)
        self.output_tokens.append(output_tokens)
        self.runs += duplicate_of is None
        if answer is not None:
            self.answers.append(answer)

    def table(self) -> pa.Table:
        columns = [_numbers(self.lines), self.custom_ids.column(), self.bodies.column()]
        columns += [pa.array(self.duplicate_of, pa.int64()), pa.array(self.fingerprints, pa.binary())]
        return pa.Table.from_arrays(columns, schema=SCHEMA)


def _numbers(values: array.array[int]) -> pa.Int64Array:
    return pa.Int64Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def segment(artifacts: Artifacts, plan_sha256: str, row_group: int, columns: Sequence[str] = SCHEMA.names) -> pa.Table:
    """Return these columns of a segment's requests. Raises UnavailableError; BatchyardError if the plan is damaged."""
    with parquet.opened(artifacts, plan_sha256, "plan") as file:
        return file.read_row_group(row_group, columns=list(columns))


def requests(
    artifacts: Artifacts, plans: Iterable[tuple[str, int]], columns: Sequence[str] = ("line", "custom_id")
) -> Iterator[pa.Table]:
    """Yield these columns of the requests of each (plan SHA-256, row group). Raises as `segment` does."""
    for plan_sha256, segments in itertools.groupby(plans, key=itemgetter(0)):
        with parquet.opened(artifacts, plan_sha256, "plan") as file:
            for _, row_group in segments:
                yield file.read_row_group(row_group, columns=list(columns))


def body_rows(table: pa.Table) -> pa.Int32Array:
    """Return the row of each request's body, that of its original for a duplicate."""
    lines = table["line"].combine_chunks()
    return pc.index_in(pc.coalesce(table["same_as"].combine_chunks(), lines), value_set=lines)
