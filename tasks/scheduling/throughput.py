"""The throughput meter: measures a model at each result chunk, and the lead at the first.

Requests that begin together also end together, so the first chunks of an engine that had nothing to do say little of
its speed: those of all segments are measured together, until answers have come for speeds.STEADY times as long as a
request takes, from an engine that is still full.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.orm import Session

from batchyard.models import ModelSpec
from store import segments, speeds
from store.records import Batch
from store.speeds import Expected, Measurement, Throughput
from tasks.context import AppContext
from tasks.port import running_models

LEAST_SECONDS = 0.001
START_SECONDS = 1.0
"""An engine that is there after less was running already."""


def measured_throughputs(context: AppContext, session: Session) -> dict[tuple[str, str], Throughput]:
    return speeds.throughputs(session, running_models(context, session))


def measure_finish(session: Session, batch: Batch, seconds: float) -> None:
    """Record the seconds from the last answer to the files."""
    speeds.measure_duration(session, "finish", "", _steps(batch.post_process), seconds, batch.total)


def expected_finish(session: Session, post_process: Sequence[Mapping[str, Any]], requests: float) -> Expected:
    steps = _steps(post_process)
    measured = speeds.expected_duration(session, "finish", "", steps, requests)
    if measured is None and steps:
        measured = speeds.expected_duration(session, "finish", "", "", requests)
    return measured or Expected(0.0, 0.0)


def _steps(post_process: Sequence[Mapping[str, Any]]) -> str:
    return ",".join(entry["step"] for entry in post_process)


@dataclass
class _Amounts:
    """Amounts of answers that an engine computed: their number, tokens, squared work, and seconds in the engine."""

    requests: int
    tokens: int
    squares: float
    seconds: float

    @classmethod
    def of(cls, answers: pa.Table) -> _Amounts:
        tokens = pc.add(answers["input_tokens"], answers["output_tokens"])
        work = pc.cast(pc.add(tokens, 1), pa.float64())
        return cls(
            requests=answers.num_rows,
            tokens=pc.sum(tokens).as_py(),
            squares=pc.sum(pc.multiply(work, work)).as_py(),
            seconds=pc.sum(answers["seconds"]).as_py() or 0.0,
        )


class ThroughputMeter:
    def __init__(self, segment: segments.SegmentLease, spec: ModelSpec) -> None:
        self._segment = segment
        self._key = (spec.name, spec.config_sha256, segment.request_class)
        self._limit = float(spec.in_flight() * spec.replicas)
        self._unanswered = segment.requests
        self._at = time.time()
        self._excluded = 0.0
        self._start: float | None = None
        self._begun = False

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Exclude the time in this block: the engine starts, which says nothing of its speed."""
        began = time.monotonic()
        try:
            yield
        finally:
            passed = time.monotonic() - began
            self._excluded += passed
            if passed > START_SECONDS:
                self._start = passed

    @property
    def started(self) -> bool:
        return self._start is not None

    def forget_start(self) -> None:
        """Do not measure the engine's start: it began before this waited for it."""
        self._start = None

    def expect(self, requests: int, limit: float) -> None:
        """Set the number of requests that the engine will get, and how many it holds."""
        self._unanswered, self._limit = requests, limit

    def measure(self, session: Session, answers: pa.Table) -> float:
        """Record a measurement since the last chunk, in the transaction that adds this one.

        `answers` are those that the engine has computed. Return the seconds of the model's time that these took; no
        second counts for two chunks.
        """
        now = time.time()
        passed = max(LEAST_SECONDS, now - self._at - self._excluded)
        speeds.add_usage(session, self._segment.project_id, passed)
        if self._start is not None:
            speeds.measure_duration(session, "start", *self._key[:2], self._start)
        busy = 0.0
        if answers.num_rows:
            # Requests that run alone say nothing of the model's speed.
            busy = passed if self._segment.alone else self._measure(session, answers, now, passed)
            self._unanswered -= answers.num_rows
        # Without such answers, all are from the cache, and the engine's lead begins now.
        self._at, self._excluded, self._start = time.time(), 0.0, None
        return busy

    def _measure(self, session: Session, answers: pa.Table, now: float, passed: float) -> float:
        amounts = _Amounts.of(answers)
        answered, unanswered = segments.beside(session, self._segment)
        unanswered += self._unanswered
        measured_at = speeds.measured_at(session, *self._key[:2])
        first, self._begun = not self._begun, True
        if first:
            alone = not any(answered.values()) and measured_at <= self._at
            passed = self._answering(session, answers, amounts, passed, alone=alone)
        # What another segment has measured meanwhile would count twice.
        seconds = now - measured_at if measured_at > self._at else passed
        began_at, class_measured_at = speeds.begun(session, *self._key)
        had_none = first and not answered.get(self._segment.request_class) and class_measured_at <= self._at
        if had_none or began_at is None:
            began_at = now - passed
            speeds.begin(session, *self._key, began_at, min(self._limit, unanswered))
        if not began_at:
            speeds.measure(session, *self._key, self._measurement(amounts, seconds, min(self._limit, unanswered)))
            return seconds
        # All these requests began after the engine got the first of them, so their seconds say how many were in it.
        seconds = max(LEAST_SECONDS, seconds)
        first_ones = self._measurement(amounts, seconds, amounts.seconds / seconds or amounts.requests)
        full = unanswered - answers.num_rows >= self._limit  # whatever has ended was replaced
        speeds.measure_first(session, *self._key, first_ones, full=full and not first)
        return seconds

    def _answering(
        self, session: Session, answers: pa.Table, amounts: _Amounts, passed: float, *, alone: bool
    ) -> float:
        """Return how long the engine had the first requests, after the lead. `alone`: it had no others."""
        longest = pc.max(answers["seconds"]).as_py()
        if longest is None:  # the engine does not say; what the measured speed does not explain is the lead
            longest = speeds.answering_seconds(session, *self._key, speeds.work(amounts.requests, amounts.tokens))
        answering = min(passed, max(LEAST_SECONDS, longest, amounts.seconds / self._limit))
        if alone:
            speeds.measure_duration(session, "lead", *self._key[:2], passed - answering)
        return float(answering)

    def _measurement(self, amounts: _Amounts, seconds: float, in_flight: float) -> Measurement:
        return Measurement(
            seconds=max(LEAST_SECONDS, seconds),
            requests=amounts.requests,
            bytes=self._segment.bytes * amounts.requests / self._segment.requests,
            tokens=amounts.tokens,
            squares=amounts.squares,
            in_flight=max(1.0, in_flight),
            limit=self._limit,
        )
