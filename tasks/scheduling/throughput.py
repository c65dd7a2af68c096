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
from store.records import Part
from store.speeds import Measured

LEAST_SECONDS = 0.001


class Meter:
    """Measures one run of a segment."""

    def __init__(self, work: segments.Work, config_sha256: str) -> None:
        self._work = work
        self._key = (work.model["name"], config_sha256, work.request_class)
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

    def measure(self, session: Session, part: Part) -> None:
        """Record what was measured since the last part, in the transaction that adds this one."""
        moment = time.time()
        passed = max(LEAST_SECONDS, moment - self._at - self._excluded)
        speeds.serve(session, self._work.project_id, passed)
        rows = part.completed + part.failed - part.shared_requests
        if rows == 0:  # all from the cache: the engine's lead is what comes now
            self._at, self._excluded = moment, 0.0
            return
        other = speeds.measured_at(session, *self._key[:2])
        measured = Measured(
            seconds=max(LEAST_SECONDS, moment - other) if other > self._at else passed,
            requests=rows,
            bytes=self._work.bytes * rows / self._work.requests,
            tokens=part.input_tokens + part.output_tokens - part.shared_input_tokens - part.shared_output_tokens,
        )
        running = self._begun or segments.others_answer(session, self._work)
        add = speeds.measure if running else speeds.measure_lead
        add(session, *self._key, measured)
        self._at, self._excluded, self._begun = time.time(), 0.0, True
