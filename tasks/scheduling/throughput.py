"""The throughput meter: measures a model at each result chunk, and the lead at the first.

Requests that begin together also end together, so the first chunks of an engine that had nothing to do say little of
its speed: those of all segments are measured together, until answers have come for speeds.STEADY times as long as a
request takes, from an engine that is still full.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
        tokens = pc.add(answers["input_tokens"], answers["output_tokens"])
        work = pc.cast(pc.add(tokens, 1), pa.float64())
        new = Measurement(
            seconds=passed,
            requests=answers.num_rows,
            bytes=self._segment.bytes * answers.num_rows / self._segment.requests,
            tokens=pc.sum(tokens).as_py(),
            squares=pc.sum(pc.multiply(work, work)).as_py(),
            in_flight=1.0,
            limit=self._limit,
        )
        engine_seconds = pc.sum(answers["seconds"]).as_py() or 0.0
        answered, unanswered = segments.beside(session, self._segment)
        unanswered += self._unanswered
        in_flight = max(1.0, min(self._limit, unanswered))
        measured_at = speeds.measured_at(session, *self._key[:2])
        speed = speeds.locked(session, *self._key)
        first, self._begun = not self._begun, True
        if first:
            alone = not any(answered.values()) and measured_at <= self._at
            longest = pc.max(answers["seconds"]).as_py()
            if longest is None:  # the engine does not say; what the measured speed does not explain is the lead
                longest = speeds.answering_seconds(speed, speeds.work(new.requests, new.tokens))
            answering = min(passed, max(LEAST_SECONDS, longest, engine_seconds / self._limit))
            if alone:  # the engine had no other requests
                speeds.measure_duration(session, "lead", *self._key[:2], passed - answering)
            passed = float(answering)
        # What another segment has measured meanwhile would count twice.
        seconds = max(LEAST_SECONDS, now - measured_at) if measured_at > self._at else passed
        had_none = first and not answered.get(self._segment.request_class) and speed.measured_at <= self._at
        if had_none or not (speed.began_at or speed.measurements):
            speeds.begin(speed, now - passed, in_flight)
        elif not speed.began_at:
            speeds.measure(speed, replace(new, seconds=seconds, in_flight=in_flight))
            return seconds
        # All these requests began after the engine got the first of them, so their seconds say how many were in it.
        first_ones = replace(new, seconds=seconds, in_flight=max(1.0, engine_seconds / seconds or new.requests))
        full = unanswered - answers.num_rows >= self._limit  # whatever has ended was replaced
        speeds.measure_first(speed, first_ones, full=full and not first)
        return seconds
