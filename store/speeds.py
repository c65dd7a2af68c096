"""Speeds: how fast each model was measured to be, by class of requests, and how long each project's work ran lately.

A model's time is divided among the segments that run on it: each measurement takes what has passed since the one before
it, whichever segment that was of, so that no second counts twice. Sums decay with this time, so that a speed follows a
machine that has become faster or slower within minutes of work, and does not age while nothing runs.
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

from store.records import Batch, Project, ResultChunk, Segment, Speed

# Prompts make up most of the work, or answers do: tokens of one kind take far longer than those of the other.
RequestClass = Literal["prefill", "decode"]
MEMORY_SECONDS = 600.0
"""Time constant with which measurements are forgotten, in seconds of the engine's work."""
BURST = 3.0
"""What looks more times as fast as the mean is a part of one segment that came right after another's: no deviation."""
LEAD_MEMORY = 0.9
"""What is left of the measured leads with each further one."""
USAGE_SECONDS = 600.0
"""Time constant with which a project's service is forgotten."""
RECENT_SECONDS = 60.0


@dataclass(frozen=True)
class Measurement:
    """One measurement of a segment's: `seconds` of its model's time, and what was answered in it."""

    seconds: float
    requests: int
    bytes: float
    tokens: int


@dataclass(frozen=True)
class Throughput:
    """How fast a model answers requests of one class.

    Attributes:
        work_per_second: of work, see `work`.
        work_per_request, bytes_per_request: means.
        spread: standard deviation of the speed of single measurements, relative to their mean.
        measurements: how many there are, the old ones counted less.
        lead_seconds: from a segment's start to its first answer, beside the engine's own start.
    """

    work_per_second: float
    work_per_request: float
    bytes_per_request: float
    spread: float
    measurements: float
    lead_seconds: float


def work(requests: float, tokens: float) -> float:
    """What answering costs, in tokens. A request counts as one more, since one that fails costs something too."""
    return requests + tokens


def measure(session: Session, model: str, config_sha256: str, request_class: str, measured: Measurement) -> None:
    """Add a measurement of a model."""
    speed = _speed(session, model, config_sha256, request_class)
    _add(speed, measured, 0.0 if speed.parts == 0 else math.exp(-measured.seconds / MEMORY_SECONDS))
    speed.parts += 1


def measure_lead(session: Session, model: str, config_sha256: str, request_class: str, first: Measurement) -> None:
    """Add a segment's first part, on an engine that answered no other meanwhile: what answering does not explain of
    its time is the segment's lead.

    Where segments are so small that they have no other part, it is all there is to tell the speed by, though most of
    its time went otherwise; the first real measurement takes its place.
    """
    speed = _speed(session, model, config_sha256, request_class)
    if speed.parts:
        answering = work(first.requests, first.tokens) * speed.seconds / work(speed.requests, speed.tokens)
        speed.lead_seconds = speed.lead_seconds * LEAD_MEMORY + max(0.0, first.seconds - answering)
        speed.leads = speed.leads * LEAD_MEMORY + 1
    else:
        _add(speed, first, LEAD_MEMORY)
    speed.measured_at = time.time()


def measured_at(session: Session, model: str, config_sha256: str) -> float:
    """When anything of a model was measured last, in Unix seconds; 0 if nothing was."""
    last = select(func.max(Speed.measured_at)).where(Speed.model == model, Speed.config_sha256 == config_sha256)
    return session.scalar(last) or 0.0


def _add(speed: Speed, measured: Measurement, kept: float) -> None:
    done = work(measured.requests, measured.tokens)
    rate = done / measured.seconds
    if speed.parts >= 1:
        rate = min(rate, BURST * work(speed.requests, speed.tokens) / speed.seconds)
    speed.seconds = speed.seconds * kept + measured.seconds
    speed.requests = speed.requests * kept + measured.requests
    speed.bytes = speed.bytes * kept + measured.bytes
    speed.tokens = speed.tokens * kept + measured.tokens
    speed.squares = speed.squares * kept + done * rate
    speed.parts *= kept
    speed.measured_at = time.time()


def _speed(session: Session, *key: str) -> Speed:
    speed = session.get(Speed, key, with_for_update=True)
    if speed is not None:
        return speed
    names = ("model", "config_sha256", "request_class")
    sums = ("seconds", "requests", "bytes", "tokens", "squares", "parts", "lead_seconds", "leads", "measured_at")
    try:
        with session.begin_nested():
            session.add(speed := Speed(**dict(zip(names, key, strict=True)), **dict.fromkeys(sums, 0.0)))
    except IntegrityError:  # another segment was the first to measure it, at the same moment
        speed = session.get_one(Speed, key, with_for_update=True)
    return speed


def throughputs(session: Session, configurations: Mapping[str, str]) -> dict[tuple[str, str], Throughput]:
    """What was measured of each model in its configuration (SHA-256 by model), by (model, class)."""
    found = session.scalars(select(Speed).where(Speed.model.in_(configurations), Speed.seconds > 0))
    return {
        (speed.model, speed.request_class): _throughput(speed)
        for speed in found
        if speed.config_sha256 == configurations[speed.model]
    }


def _throughput(speed: Speed) -> Throughput:
    done = work(speed.requests, speed.tokens)
    mean = done / speed.seconds
    variance = max(0.0, speed.squares / speed.seconds - mean**2)
    return Throughput(
        work_per_second=mean,
        work_per_request=done / speed.requests,
        bytes_per_request=speed.bytes / speed.requests,
        spread=math.sqrt(variance) / mean,
        measurements=speed.parts,
        lead_seconds=speed.lead_seconds / speed.leads if speed.leads else 0.0,
    )


def add_usage(session: Session, project_id: str, seconds: float) -> None:
    """Note that a segment of a project's ran for `seconds`."""
    project = session.get_one(Project, project_id, with_for_update=True)
    moment = time.time()
    project.recent_usage = _decayed(project, moment) + seconds
    project.recent_usage_at = moment


def recent_usage(session: Session, project_ids: Collection[str], moment: float) -> dict[str, float]:
    """Seconds that each project's segments ran lately."""
    found = session.scalars(select(Project).where(Project.id.in_(project_ids)))
    return {project.id: _decayed(project, moment) for project in found}


def _decayed(project: Project, moment: float) -> float:
    return project.recent_usage * math.exp(-max(0.0, moment - project.recent_usage_at) / USAGE_SECONDS)


def recent(session: Session, by: InstrumentedAttribute[str], *batch_ids: str) -> dict[str, tuple[float, float]]:
    """(requests per second, tokens per second) over the last minute, by model (Segment.model) or batch (Part.batch_id).

    Of these batches, or else of all that are in progress. What has no two parts is not there: the first part only
    starts the clock, what it holds was answered before.
    """
    moment = time.time()
    scope = ResultChunk.batch_id.in_(batch_ids) if batch_ids else Batch.status == "in_progress"
    parts = session.execute(
        select(
            by,
            ResultChunk.created_at,
            ResultChunk.completed + ResultChunk.failed,
            ResultChunk.input_tokens + ResultChunk.output_tokens,
        )
        .join(Segment, Segment.id == ResultChunk.segment_id)
        .join(Batch, Batch.id == ResultChunk.batch_id)
        .where(scope, ResultChunk.created_at > moment - RECENT_SECONDS, Segment.epoch > 0)  # 0: answered in validation
        .order_by(ResultChunk.created_at)
    )
    began: dict[str, float] = {}
    answered: dict[str, tuple[int, int]] = {}
    for group, created_at, requests, tokens in parts:
        if began.setdefault(group, created_at) < created_at:
            before = answered.get(group, (0, 0))
            answered[group] = before[0] + requests, before[1] + tokens
    return {
        group: (requests / (moment - began[group]), tokens / (moment - began[group]))
        for group, (requests, tokens) in answered.items()
    }
