"""What the jobs of a cell have measured: rows that ended, and why others did not."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import redis

from batchyard.models import ModelSpec
from batchyard.wording import MAX_MESSAGE, cut
from inference.residents.status import EngineStatus
from recipes.tune.cells import Cell, value_at
from recipes.tune.results import CellResult, Repeat, State
from store.formats import job_chunks
from store.jobs import chunk_records, composites
from store.records import Job
from tasks.context import AppContext
from tasks.execution import engine_status

log = logging.getLogger(__name__)

PERCENTILES = (50, 95, 99)
EVIDENCE = 10
"""Reasons that are kept of a failure, the commonest first."""
_COLUMNS = ["state", "result", "error", "started_at", "ended_at"]


@dataclass
class Wave:
    """The ended jobs of one repeat of a cell, which ran side by side, with sums of their rows. Repeat 0 is the warm-up.

    `seconds` are those of the answered rows, `errors` the numbers of the others by code and message.
    """

    repeat: int
    jobs: Sequence[Job]
    ok: int = 0
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    started_at: float = float("inf")
    ended_at: float = 0.0

    @classmethod
    def of(cls, context: AppContext, repeat: int, jobs: Sequence[Job]) -> Wave:
        """Read the rows of these jobs. Raises UnavailableError."""
        with context.database.read() as session:
            chunks = [chunk for job in jobs for chunk in chunk_records.of_job(session, job.id, "result")]
            began_at, answered_at = composites.times(session, [job.id for job in jobs])
        wave = cls(repeat, jobs)
        for chunk in chunks:
            for row in job_chunks.read(context.artifacts, chunk.sha256, _COLUMNS).to_pylist():
                wave._add(row)
        if began_at is not None and wave.started_at > began_at + 1:
            wave.started_at = began_at  # a job that was read from its records knows no earlier start of its items
        if answered_at is not None:
            wave.ended_at = answered_at
        return wave

    @property
    def rows(self) -> int:
        return self.ok + self.errors.total()

    def _add(self, row: dict[str, Any]) -> None:
        result = json.loads(row["result"])
        self.started_at = min(self.started_at, row["started_at"])
        self.ended_at = max(self.ended_at, row["ended_at"])
        if row["state"] != "completed":
            error = json.loads(row["error"] or "{}")
            self.errors[str(error.get("code")), str(error.get("message"))] += 1
            return
        self.ok += 1
        self.input_tokens += result.get("input_tokens") or 0
        self.output_tokens += result.get("output_tokens") or 0
        if result.get("seconds") is not None:
            self.seconds.append(result["seconds"])

    def measured(self) -> Repeat:
        """Return its figures. `seconds` are those from its first row's start to the record of its last answers."""
        percentiles = np.percentile(self.seconds, PERCENTILES).tolist() if self.seconds else [None] * 3
        by_code = Counter[str]()
        for (code, _), number in self.errors.items():
            by_code[code] += number
        return Repeat(
            **{name: getattr(self, name) for name in ("rows", "ok", "input_tokens", "output_tokens")},
            errors=dict(by_code),
            seconds=self.ended_at - self.started_at,
            **dict(zip(("p50", "p95", "p99"), percentiles, strict=True)),
            jobs=tuple(job.id for job in self.jobs),
        )

    def failure(self, cell_budget: str) -> tuple[State, str] | None:
        """Return state and reason of a cell whose wave this is, None if it goes on."""
        what = f"repeat {self.repeat}" if self.repeat else "the warm-up"
        if any(job.status == "expired" for job in self.jobs):
            total = sum(job.total for job in self.jobs)
            ended = f"{self.rows} of {total} rows of {what} had ended"
            return "over_budget", f"the time of the cell ({cell_budget}) ended: {ended}"
        for job in self.jobs:
            if job.status != "completed":
                return "failed", next((error["message"] for error in job.errors or ()), f"{what} was {job.status}")
        if not self.ok:
            (code, message), _ = self.errors.most_common(1)[0]
            return "failed", f"no row of {what} was answered; {code}: {cut(message, MAX_MESSAGE)}"
        return None

    def evidence(self, context: AppContext) -> tuple[str, ...]:
        """Return what its failures say, the commonest first, and why its segments have failed last."""
        with context.database.read() as session:
            of_segments = composites.segment_errors(session, [job.id for job in self.jobs])
        of_rows = [f"{code}: {message}" for (code, message), _ in self.errors.most_common(EVIDENCE)]
        waiting = [job.attempt_error for job in self.jobs if job.attempt_error]
        lines = dict.fromkeys(cut(line, MAX_MESSAGE) for line in (*of_rows, *waiting, *of_segments))
        return tuple(lines)[:EVIDENCE]


def engines(context: AppContext, model: str) -> list[EngineStatus]:
    """Return the engines of a model as they were seen last; none if Redis is away."""
    try:
        return [engine for engine in engine_status.read(context) if engine.model == model]
    except redis.RedisError as error:
        log.warning("engine states not read: %s", error)
        return []


def result(
    context: AppContext, cell: Cell, spec: ModelSpec, waves: Sequence[Wave], failure: tuple[State, str] | None
) -> CellResult:
    """Return what became of a cell whose `waves` have ended; the last says why it failed."""
    states = engines(context, spec.name)
    completed = waves if failure is None else waves[:-1]
    record = waves[-1].jobs[0]
    entry = record.models[spec.name]
    return CellResult(
        cell=cell,
        state="completed" if failure is None else failure[0],
        repeats=tuple(wave.measured() for wave in completed if wave.repeat),
        start_seconds=max(
            (engine.start_seconds for engine in states if engine.start_seconds is not None), default=None
        ),
        capacity=sum(engine.capacity or 0 for engine in states) or None,
        peak_memory=sum(engine.peak_memory_bytes or 0 for engine in states) or None,
        peak_gpu_memory=sum(engine.peak_gpu_memory_bytes or 0 for engine in states) or None,
        error=None if failure is None else failure[1],
        evidence=() if failure is None else waves[-1].evidence(context),
        derived=spec.name,
        config_sha256=spec.config_sha256,
        overrides={key: value_at(entry, key) for key in cell.overrides},
        simulated=record.simulated,
    )
