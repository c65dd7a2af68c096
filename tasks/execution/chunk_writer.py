"""The chunk writer: appends answers to a segment as result chunks, about one a second."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc

from batchyard import json_lines
from batchyard.backoff import Backoff
from batchyard.comparing import histogram
from batchyard.endpoints import output_lines, responses
from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.errors import UnavailableError
from batchyard.tariffs import Amounts
from batchyard.telemetry import requests, spans
from batchyard.telemetry.spans import EndedSpan
from batchyard.wording import FLAWS
from store import segments
from store.accounting import budgets, stopping, usage
from store.formats import chunks
from store.records import AMOUNTS, ResultChunk
from tasks.context import AppContext
from tasks.execution import progress, tally
from tasks.execution.result_cache import TOKENS, Cache
from tasks.port import port
from tasks.scheduling import caps
from tasks.scheduling.dispatch import Drain
from tasks.scheduling.throughput import ThroughputMeter

log = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
FLUSH_ROWS = 20_000
FLUSH_BYTES = 32 * 1024 * 1024
BACKOFF = Backoff(first=0.5, longest=10.0)


@dataclass
class ChunkWriter:
    """Collects answers and appends them to the segment, every FLUSH_SECONDS, FLUSH_ROWS or FLUSH_BYTES.

    Answers have cost an engine's time. While the database or the artifact store is away they wait here, until
    `stopped` says that the segment is no longer wanted.
    """

    context: AppContext
    segment: segments.SegmentLease
    stopped: threading.Event
    meter: ThroughputMeter | None = None
    cache: Cache | None = None
    drain: Drain | None = None

    def __post_init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._flushed_at = time.monotonic()

    def add(self, table: pa.Table) -> None:
        write_spans(self.segment, table, self.context.settings.trace_requests)
        self._tables.append(table)
        due = time.monotonic() - self._flushed_at >= FLUSH_SECONDS
        full = sum(table.num_rows for table in self._tables) >= FLUSH_ROWS
        if due or full or sum(table.nbytes for table in self._tables) >= FLUSH_BYTES:
            self.flush()

    def flush(self, *, ends: bool = False) -> None:
        """Append the answers so far. `ends`: no others come. Raises LeaseLost; UnavailableError once unwanted."""
        if not self._tables:
            return
        table = pa.concat_tables(self._tables)
        seconds = pc.drop_null(table["seconds"]).to_pylist()
        for attempt in count(1):
            try:
                chunk = self._append(table, seconds)
                break
            except UnavailableError as error:
                log.warning("answers wait: %s", error, extra={"batch_id": self.segment.batch_id, "attempt": attempt})
                with suppress(UnavailableError), self.context.database.write() as session:
                    segments.hold_up(session, self.segment, error.message)
                if self.stopped.wait(BACKOFF.seconds(attempt)):
                    raise
        self._tables = []
        self._flushed_at = time.monotonic()
        progress.publish(self.context, self.segment.batch_id)
        if self.segment.job_id is not None:
            port().chunk_appended(self.context, self.segment.job_id, last=ends)
        codes = Counter(map(output_lines.error_code, table.filter(pc.invert(table["ok"]))["answer"].to_pylist()))
        amounts = {name: getattr(chunk, name) for name in AMOUNTS} | {
            f"error:{code}": number for code, number in codes.items()
        }
        amounts |= tally.request_seconds(self.segment.request_class, seconds)
        tally.count(self.context, self.segment.model["name"], amounts)
        if self.cache is not None:
            self.cache.keep(table)
        if self.drain is not None and not self.stopped.is_set():  # a process that ends starts nothing more
            self.drain.appended(table.num_rows)

    def _append(self, table: pa.Table, seconds: Sequence[float]) -> ResultChunk:
        completed, shared = _sum(table["ok"]), table.filter(table["shared"])
        computed = table.filter(pc.invert(table["shared"]))
        chunk = ResultChunk(
            batch_id=self.segment.batch_id,
            segment_id=self.segment.lease.id,
            sha256=chunks.write(self.context.artifacts, table),
            completed=completed,
            failed=table.num_rows - completed,
            **{name: _sum(table[name]) for name in (*TOKENS, "reasoning_tokens")},
            shared_requests=shared.num_rows,
            shared_input_tokens=_sum(shared["input_tokens"]),
            shared_output_tokens=_sum(shared["output_tokens"]),
            **self._flaws(table),
            created_at=time.time(),
        )
        with self.context.database.write() as session:
            # A COMMIT whose outcome was unclear may have added the chunk already.
            if segments.append(session, self.segment, chunk, histogram.of(seconds)):
                meter = self.meter
                busy = 0.0 if meter is None else meter.measure(session, computed)
                answered = chunk.completed + chunk.failed
                used = Amounts(
                    requests=answered,
                    failed=chunk.failed,
                    shared_requests=chunk.shared_requests,
                    **{name: _sum(computed[name]) for name in TOKENS},
                    bytes=self.segment.bytes * answered // self.segment.requests,
                    milliseconds=round(1000 * busy),
                )
                usage.add(session, self.segment, used)
                if self.segment.has_limits:
                    stopping.check(session, self.segment.batch_id)
        if self.segment.capped_key is not None:
            # In another transaction: of chunks appended at once, the last one sees them all.
            with self.context.database.read() as session:
                standing = budgets.standing(session, self.segment.project_id, self.segment.capped_key)
            if standing is not None:
                caps.settle(self.context, standing)
        return chunk

    def _flaws(self, table: pa.Table) -> dict[str, int]:
        flaws = dict.fromkeys(FLAWS, 0) | {"invalid": _sum(table["invalid"])}
        if ENDPOINTS[self.segment.endpoint].generates:
            for line in table.filter(table["ok"])["answer"].to_pylist():
                body = (json_lines.loads(line)["response"] or {}).get("body")
                for name in FLAWS.keys() & responses.flaws(body):
                    flaws[name] += 1
        return flaws


def write_spans(segment: segments.SegmentLease, answers: pa.Table, share: float) -> None:
    """Write spans of this share of answers that an engine has just given."""
    if not spans.enabled() or (parent := spans.current()) is None:
        return
    end, model = time.time_ns(), str(segment.model["name"])
    for index in spans.picked(answers.num_rows, share):
        [row] = answers.slice(index, 1).to_pylist()
        if row["shared"] or row["seconds"] is None:
            continue  # no engine has answered it
        attributes = requests.attributes(segment.endpoint, model, str(segment.model["engine"]))
        attributes |= requests.usage(row) | {"batchyard.line": row["line"]}
        if row["served_model"]:
            attributes["gen_ai.response.model"] = row["served_model"]
        spans.write(
            EndedSpan(
                requests.name(segment.endpoint, model),
                spans.child(parent),
                parent,
                end - int(1e9 * row["seconds"]),
                end,
                attributes,
                None if row["ok"] else output_lines.error_code(row["answer"]),
                "client",
            )
        )


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column).as_py() or 0)
