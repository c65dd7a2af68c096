"""The meter: how fast a segment's model answers, measured at each part, and how long the segment took to begin."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from store import segments, speeds
from store.records import Part
from store.speeds import Measured


class Meter:
    """Measures one run of a segment. The clock of its speed starts with its first part; until then is its lead."""

    def __init__(self, work: segments.Work, config_sha256: str) -> None:
        self._work = work
        self._model = work.model["name"]
        self._key = (self._model, config_sha256, work.request_class)
        self._at = time.monotonic()
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
        moment = time.monotonic()
        passed = moment - self._at - self._excluded
        speeds.serve(session, self._work.project_id, passed)
        rows = part.completed + part.failed - part.shared_requests
        if rows == 0:  # all from the cache: the engine's lead is what comes now
            self._at, self._excluded = moment, 0.0
            return
        sharing = max(1, segments.sharing(session, self._model))
        measured = Measured(
            seconds=passed / sharing,
            requests=rows,
            bytes=self._work.bytes * rows / self._work.requests,
            tokens=part.input_tokens + part.output_tokens - part.shared_input_tokens - part.shared_output_tokens,
        )
        if self._begun:
            speeds.measure(session, *self._key, measured)
        else:
            speeds.measure_lead(session, *self._key, passed, measured, beside=sharing > 1, waited=self._work.beside)
        self._at, self._excluded, self._begun = moment, 0.0, True
