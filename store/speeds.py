"""Speeds: the measured throughput of each model, by request class, and each project's recent usage.

A model's segments share its time: each measurement covers the time since the last one of any segment, so that no second
counts twice. Sums decay with that time. So a speed follows a machine that becomes faster or slower within minutes of
work, and does not age while nothing runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute, Session

from store import projects
from store.records import Batch, Project, ResultChunk, Segment, Speed

# Most of the work is reading prompts (prefill) or writing answers (decode). Their tokens differ much in cost.
RequestClass = Literal["prefill", "decode"]
MEMORY_SECONDS = 600.0
"""Time constant of the decay of measurements, in seconds of the engine's work."""
BURST = 3.0
"""A measurement is clipped at this many times the mean: a chunk right after another segment's only looks so fast."""
LEAD_MEMORY = 0.9
"""Factor of the older leads with each new one."""
USAGE_SECONDS = 600.0
"""Time constant of the decay of a project's usage."""
RECENT_SECONDS = 60.0


@dataclass(frozen=True)
class Measurement:
    """One measurement of a segment: `seconds` of its model's time, and the amounts that were answered in it."""

    seconds: float
    requests: int
    bytes: float
    tokens: int


@dataclass(frozen=True)
class Throughput:
    """The speed of a model for requests of one class.

    Attributes:
        work_per_second: see `work`.
        work_per_request, bytes_per_request: means.
        spread: standard deviation of the speed of single measurements, relative to their mean.
        measurements: their number, old ones counted less.
        lead_seconds: from a segment's start to its first answer, without the engine's own start.
    """

    work_per_second: float
    work_per_request: float
    bytes_per_request: float
    spread: float
    measurements: float
    lead_seconds: float


def work(requests: float, tokens: float) -> float:
    """Return the cost of answers, in tokens. A request counts as one more, since failed requests cost time too."""
    return requests + tokens


def measure(session: Session, model: str, config_sha256: str, request_class: str, measurement: Measurement) -> None:
    """Add a measurement of a model."""
    speed = _speed(session, model, config_sha256, request_class)
    _add(speed, measurement, 0.0 if speed.measurements == 0 else math.exp(-measurement.seconds / MEMORY_SECONDS))
    speed.measurements += 1


def measure_lead(session: Session, model: str, config_sha256: str, request_class: str, first: Measurement) -> None:
    """Add the measurement of a segment's first chunk, on an engine that answered no other segment meanwhile.

    The lead is the part of its time that the model's speed does not explain. Small segments have no other chunk: until
    the first real measurement replaces it, the whole time counts as the speed.
    """
    speed = _speed(session, model, config_sha256, request_class)
    if speed.measurements:
        answering = work(first.requests, first.tokens) * speed.seconds / work(speed.requests, speed.tokens)
        speed.lead_seconds = speed.lead_seconds * LEAD_MEMORY + max(0.0, first.seconds - answering)
        speed.leads = speed.leads * LEAD_MEMORY + 1
    else:
        _add(speed, first, LEAD_MEMORY)
    speed.measured_at = time.time()


def measured_at(session: Session, model: str, config_sha256: str) -> float:
    """Return the time of a model's last measurement in Unix seconds; 0 without one."""
    last = select(func.max(Speed.measured_at)).where(Speed.model == model, Speed.config_sha256 == config_sha256)
    return session.scalar(last) or 0.0


def _add(speed: Speed, measurement: Measurement, decay: float) -> None:
    answered = work(measurement.requests, measurement.tokens)
    rate = answered / measurement.seconds
    if speed.measurements >= 1:
        rate = min(rate, BURST * work(speed.requests, speed.tokens) / speed.seconds)
    speed.seconds = speed.seconds * decay + measurement.seconds
    speed.requests = speed.requests * decay + measurement.requests
    speed.bytes = speed.bytes * decay + measurement.bytes
    speed.tokens = speed.tokens * decay + measurement.tokens
    speed.squares = speed.squares * decay + answered * rate
    speed.measurements *= decay
    speed.measured_at = time.time()


def _speed(session: Session, *key: str) -> Speed:
    speed = session.get(Speed, key, with_for_update=True)
    if speed is not None:
        return speed
    names = ("model", "config_sha256", "request_class")
    sums = ("seconds", "requests", "bytes", "tokens", "squares", "measurements", "lead_seconds", "leads", "measured_at")
    try:
        with session.begin_nested():
            session.add(speed := Speed(**dict(zip(names, key, strict=True)), **dict.fromkeys(sums, 0.0)))
    except IntegrityError:  # another transaction has created it meanwhile
        speed = session.get_one(Speed, key, with_for_update=True)
    return speed


def throughputs(session: Session, configurations: Mapping[str, str]) -> dict[tuple[str, str], Throughput]:
    """Return measured throughputs by (model, request class).

    Args:
        configurations: SHA-256 of the configuration, by model.
    """
    speeds = session.scalars(select(Speed).where(Speed.model.in_(configurations), Speed.seconds > 0))
    return {
        (speed.model, speed.request_class): _throughput(speed)
        for speed in speeds
        if speed.config_sha256 == configurations[speed.model]
    }


def _throughput(speed: Speed) -> Throughput:
    answered = work(speed.requests, speed.tokens)
    mean = answered / speed.seconds
    variance = max(0.0, speed.squares / speed.seconds - mean**2)
    return Throughput(
        work_per_second=mean,
        work_per_request=answered / speed.requests,
        bytes_per_request=speed.bytes / speed.requests,
        spread=math.sqrt(variance) / mean,
        measurements=speed.measurements,
        lead_seconds=speed.lead_seconds / speed.leads if speed.leads else 0.0,
    )


def add_usage(session: Session, project_id: str, seconds: float) -> None:
    """Add `seconds` that a segment of a project ran to its recent usage."""
    project = projects.get(session, project_id, lock=True)
    now = time.time()
    project.recent_usage = _decayed(project, now) + seconds
    project.recent_usage_at = now


def recent_usage(session: Session, project_ids: Collection[str], now: float) -> dict[str, float]:
    """Return the seconds that each project's segments ran recently, by project id."""
    projects = session.scalars(select(Project).where(Project.id.in_(project_ids)))
    return {project.id: _decayed(project, now) for project in projects}


def _decayed(project: Project, now: float) -> float:
    return project.recent_usage * math.exp(-max(0.0, now - project.recent_usage_at) / USAGE_SECONDS)


def recent(
    session: Session, by: InstrumentedAttribute[str], *batch_ids: str, project_id: str | None = None
) -> dict[str, tuple[float, float]]:
    """Return (requests per second, tokens per second) over the last minute.

    A group needs two result chunks in it: the first starts the clock, and its answers are older.

    Args:
        by: the group: Segment.model or ResultChunk.batch_id.
        batch_ids: the batches to measure; none for all in progress.
        project_id: of this project only.
    """
    now = time.time()
    scope = ResultChunk.batch_id.in_(batch_ids) if batch_ids else Batch.status == "in_progress"
    if project_id is not None:
        scope = scope & (Batch.project_id == project_id)
    chunks = session.execute(
        select(
            by,
            ResultChunk.created_at,
            ResultChunk.completed + ResultChunk.failed,
            ResultChunk.input_tokens + ResultChunk.output_tokens,
        )
        .join(Segment, Segment.id == ResultChunk.segment_id)
        .join(Batch, Batch.id == ResultChunk.batch_id)
        .where(scope, ResultChunk.created_at > now - RECENT_SECONDS, Segment.epoch > 0)  # 0: answered in validation
        .order_by(ResultChunk.created_at)
    )
    began: dict[str, float] = {}
    answered: dict[str, tuple[int, int]] = {}
    for group, created_at, requests, tokens in chunks:
        if began.setdefault(group, created_at) < created_at:
            before = answered.get(group, (0, 0))
            answered[group] = before[0] + requests, before[1] + tokens
    return {
        group: (requests / (now - began[group]), tokens / (now - began[group]))
        for group, (requests, tokens) in answered.items()
    }
