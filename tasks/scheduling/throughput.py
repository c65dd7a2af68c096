"""The meter: how fast a segment's model answers, measured at each part, and how long the segment took to begin.

The clock of the speed starts with the segment's first part, or with another segment's on the same model: the model's
time until then was that one's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from store import segments, speeds
from store.records import ResultChunk
from store.speeds import Measurement

LEAST_SECONDS = 0.001


class ThroughputMeter:
    """Measures one run of a segment."""

    def __init__(self, segment: segments.SegmentLease, config_sha256: str) -> None:
        self._segment = segment
        self._key = (segment.model["name"], config_sha256, segment.request_class)
        self._at = time.time()
        self._excluded = 0.0
        self._begun = False

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Time that says nothing of the model's speed: its engine starts."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._excluded += time.monotonic() - began

    def measure(self, session: Session, chunk: ResultChunk) -> None:
        """Record what was measured since the last part, in the transaction that adds this one."""
        moment = time.time()
        passed = max(LEAST_SECONDS, moment - self._at - self._excluded)
        speeds.add_usage(session, self._segment.project_id, passed)
        rows = chunk.completed + chunk.failed - chunk.shared_requests
        if rows == 0:  # all from the cache: the engine's lead is what comes now
            self._at, self._excluded = moment, 0.0
            return
        other = speeds.measured_at(session, *self._key[:2])
        measured = Measurement(
            seconds=max(LEAST_SECONDS, moment - other) if other > self._at else passed,
            requests=rows,
            bytes=self._segment.bytes * rows / self._segment.requests,
            tokens=chunk.input_tokens + chunk.output_tokens - chunk.shared_input_tokens - chunk.shared_output_tokens,
        )
        running = self._begun or segments.others_answer(session, self._segment)
        add = speeds.measure if running else speeds.measure_lead
        add(session, *self._key, measured)
        self._at, self._excluded, self._begun = time.time(), 0.0, True
