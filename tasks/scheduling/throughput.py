"""The throughput meter: measures a segment's model at each result chunk, and the segment's lead at its first one.

A measurement begins at the segment's start or at the latest chunk of any segment of the model, so that no second of
the model counts twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from store import segments, speeds
from store.records import ResultChunk
from store.speeds import Measurement, Throughput
from tasks.context import AppContext

LEAST_SECONDS = 0.001


def measured_throughputs(context: AppContext, session: Session) -> dict[tuple[str, str], Throughput]:
    """Return the measured speed of each served model in its present configuration, by model and request class."""
    return speeds.throughputs(session, {name: spec.config_sha256 for name, spec in context.models.items()})


class ThroughputMeter:
    """Measures one attempt of a segment."""

    def __init__(self, segment: segments.SegmentLease, config_sha256: str) -> None:
        self._segment = segment
        self._key = (segment.model["name"], config_sha256, segment.request_class)
        self._at = time.time()
        self._excluded = 0.0
        self._begun = False

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Exclude the time in this block: the engine starts, which says nothing of its speed."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._excluded += time.monotonic() - began

    def measure(self, session: Session, chunk: ResultChunk) -> None:
        """Record a measurement since the last chunk, in the transaction that adds this one."""
        now = time.time()
        passed = max(LEAST_SECONDS, now - self._at - self._excluded)
        speeds.add_usage(session, self._segment.project_id, passed)
        rows = chunk.completed + chunk.failed - chunk.shared_requests
        if rows == 0:  # all answers are from the cache, so the engine's lead begins now
            self._at, self._excluded = now, 0.0
            return
        measured_at = speeds.measured_at(session, *self._key[:2])
        measurement = Measurement(
            seconds=max(LEAST_SECONDS, now - measured_at) if measured_at > self._at else passed,
            requests=rows,
            bytes=self._segment.bytes * rows / self._segment.requests,
            tokens=chunk.input_tokens + chunk.output_tokens - chunk.shared_input_tokens - chunk.shared_output_tokens,
        )
        running = self._begun or segments.others_answer(session, self._segment)
        add = speeds.measure if running else speeds.measure_lead
        add(session, *self._key, measurement)
        self._at, self._excluded, self._begun = time.time(), 0.0, True
