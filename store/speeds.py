"""Speeds: the measured throughput of each model, how long its start and first answers take, and recent usage.

A model's segments share its time: each measurement covers the time since the last one of any segment, so that no second
counts twice. Sums decay with that time. So a speed follows a machine that becomes faster or slower within minutes of
work, and does not age while nothing runs.
"""

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from batchyard.models import ModelSpec
from store import database, projects
from store.records import Batch, Duration, Project, ResultChunk, Segment, Speed

# Most of the work is reading prompts (prefill) or writing answers (decode). Their tokens differ much in cost.
RequestClass = Literal["prefill", "decode"]
DurationKind = Literal["start", "lead", "finish"]
"""What takes time beside the answers: an engine's start, the time until its first answers come, merge and steps."""
MEMORY_SECONDS = 600.0
"""Time constant of the decay of measurements, in seconds of the engine's work."""
BURST = 3.0
"""A measurement is clipped at this many times the mean: a chunk right after another segment's only looks so fast."""
DURATION_MEMORY = 0.9
"""Factor of the older durations, and of the older first measurements, with each new one."""
STEADY = 2.0
"""Requests that begin together end together. After so many times as long as one takes their ends are spread enough."""
AMOUNTS = ("seconds", "requests", "bytes", "tokens", "squares", "request_seconds", "request_squares")
USAGE_SECONDS = 600.0
"""Time constant of the decay of a project's usage."""
RECENT_SECONDS = 60.0


@dataclass(frozen=True)
class Measurement:
    """One measurement of a segment: `seconds` of its model's time, and the amounts that were answered in it.

    `squares` is the sum of the squares of each request's work. `in_flight` is the mean number of requests in the
    model's engines, `limit` the most that they hold; 0 if they do not say.
    """

    seconds: float
    requests: int
    bytes: float
    tokens: int
    squares: float
    in_flight: float
    limit: float = 0.0


@dataclass(frozen=True, order=True)
class Expected:
    """How long something usually takes, in seconds, and the standard deviation of one time from that."""

    seconds: float
    deviation: float


@dataclass(frozen=True)
class Throughput:
    """The speed of a model for requests of one class. Spreads are standard deviations relative to the mean."""

    work_per_second: float  # see `work`; as measured, with `in_flight` requests in its engines
    work_per_request: float
    bytes_per_request: float
    spread: float
    measurements: float  # their number, old ones counted less. Below 1: only first answers were measured.
    requests: float = math.inf  # number of requests that were measured, old ones counted less
    request_spread: float = 0.0
    in_flight: float = 1.0
    limit: float = 1.0  # the most requests in flight
    # From a segment's start to the moment at which the engine has its first requests
    lead: Expected = field(default_factory=lambda: Expected(0.0, 0.0))
    start: Expected | None = None  # of a cold engine; None if none was measured

    def speed(self, requests: float) -> tuple[float, float]:
        """Return work per second with so many requests left, and the log of its error factor.

        From what was measured to `requests` the speed may have changed not at all, or as the number of requests. The
        result is the geometric mean of both.
        """
        change = math.log(max(1.0, min(requests, self.limit)) / min(self.in_flight, self.limit))
        return self.work_per_second * math.exp(change / 2), abs(change) / 2


def work(requests: float, tokens: float) -> float:
    """Return the cost of answers in tokens, and one a request, as failed ones cost time too."""
    return requests + tokens


def locked(session: Session, model: str, config_sha256: str, request_class: str) -> Speed:
    """Return the speed of a model in a configuration for a class, perhaps a new one, until the transaction ends."""
    key = {"model": model, "config_sha256": config_sha256, "request_class": request_class}
    return database.locked(session, Speed, key)


def measure(speed: Speed, measurement: Measurement) -> None:
    """Add a measurement of a model whose engine was at work all the time.

    What was measured with fewer requests in flight gives way, in the time in which as many are answered.
    """
    decay = 0.0 if speed.measurements == 0 else math.exp(-measurement.seconds / MEMORY_SECONDS)
    decay *= _fewer(speed, measurement.in_flight) ** min(1.0, measurement.requests / measurement.in_flight)
    _add(speed, measurement, decay)
    speed.measurements += 1


def begin(speed: Speed, began_at: float, in_flight: float) -> None:
    """Record when an engine got its first requests after none: its speed needs time.

    `in_flight`: the number of requests that it will have. First answers beside fewer of them count less from now on.
    """
    speed.began_at = began_at
    if not speed.measurements:
        decay = DURATION_MEMORY * _fewer(speed, in_flight)
        for amount in AMOUNTS:
            setattr(speed, amount, getattr(speed, amount) * decay)


def _fewer(speed: Speed, in_flight: float) -> float:
    """Return the share of these requests in flight when a speed was measured, 1 at most."""
    return min(1.0, speed.request_seconds / speed.seconds / in_flight) if speed.seconds else 1.0


def measure_first(speed: Speed, first: Measurement, *, full: bool = False) -> None:
    """Add a measurement since `begin`. It counts only where there is no better one.

    The first ones together are a speed if the engine is `full`, and has been at work STEADY times as long as a request
    takes. After that the model can be measured.
    """
    if not speed.measurements:
        _add(speed, first, 1.0)
        speed.squares = work(speed.requests, speed.tokens) ** 2 / speed.seconds  # together they are one measurement
    speed.measured_at = time.time()
    # Little's law: the time that a request takes is the number of those in flight by those answered in a second.
    if full and speed.measured_at - speed.began_at >= STEADY * speed.request_seconds / speed.requests:
        speed.began_at = 0.0
        speed.measurements = max(1.0, speed.measurements)


def answering_seconds(speed: Speed, amount: float) -> float:
    """Return the seconds of an amount of work at the measured speed, infinite without one."""
    return amount * speed.seconds / work(speed.requests, speed.tokens) if speed.measurements else math.inf


def measured_at(session: Session, model: str, config_sha256: str) -> float:
    """Return the time of a model's last measurement in Unix seconds; 0 without one."""
    last = select(func.max(Speed.measured_at)).where(Speed.model == model, Speed.config_sha256 == config_sha256)
    return session.scalar(last) or 0.0


def _add(speed: Speed, measurement: Measurement, decay: float) -> None:
    """Add a measurement to sums that decay by a factor."""
    answered = work(measurement.requests, measurement.tokens)
    rate = answered / measurement.seconds
    if speed.measurements >= 1:
        rate = min(rate, BURST * work(speed.requests, speed.tokens) / speed.seconds)
    amounts = (
        *(measurement.seconds, measurement.requests, measurement.bytes, measurement.tokens),
        *(answered * rate, measurement.in_flight * measurement.seconds, measurement.squares),
    )
    for name, amount in zip(AMOUNTS, amounts, strict=True):
        setattr(speed, name, getattr(speed, name) * decay + amount)
    speed.measurements *= decay
    speed.measured_at = time.time()
    speed.in_flight_limit = measurement.limit or speed.in_flight_limit


def throughputs(session: Session, specs: Mapping[str, ModelSpec]) -> dict[tuple[str, str], Throughput]:
    configurations = {name: spec.config_sha256 for name, spec in specs.items()}
    speeds = session.scalars(select(Speed).where(Speed.model.in_(specs), Speed.seconds > 0))
    durations = session.scalars(select(Duration).where(Duration.kind.in_(("start", "lead")), Duration.name.in_(specs)))
    usual = {(record.kind, record.name, record.variant): _expected(record) for record in durations}
    return {
        (speed.model, speed.request_class): _throughput(
            speed,
            limit=speed.in_flight_limit or float(specs[speed.model].in_flight() * specs[speed.model].replicas),
            lead=usual.get(("lead", speed.model, speed.config_sha256), Expected(0.0, 0.0)),
            start=usual.get(("start", speed.model, speed.config_sha256)),
        )
        for speed in speeds
        if speed.config_sha256 == configurations[speed.model]
    }


def _throughput(speed: Speed, *, limit: float, lead: Expected, start: Expected | None) -> Throughput:
    answered = work(speed.requests, speed.tokens)
    mean, mean_request = answered / speed.seconds, answered / speed.requests
    variance = max(0.0, speed.squares / speed.seconds - mean**2)
    request_variance = max(0.0, speed.request_squares / speed.requests - mean_request**2)
    return Throughput(
        work_per_second=mean,
        work_per_request=mean_request,
        bytes_per_request=speed.bytes / speed.requests,
        spread=math.sqrt(variance) / mean,
        measurements=speed.measurements,
        requests=speed.requests,
        request_spread=math.sqrt(request_variance) / mean_request,
        in_flight=min(limit, max(1.0, speed.request_seconds / speed.seconds)),
        limit=limit,
        lead=lead,
        start=start,
    )


def measure_duration(
    session: Session, kind: DurationKind, name: str, variant: str, seconds: float, units: float = 0.0
) -> None:
    """Add one time of a model's, or of finishing something in some way, which may grow with `units`."""
    amounts = {
        "number": 1.0,
        "units": units,
        "seconds": seconds,
        "units_squared": units**2,
        "units_seconds": units * seconds,
        "seconds_squared": seconds**2,
    }
    key = {"kind": kind, "name": name, "variant": variant[:256]}
    record = database.locked(session, Duration, key, **dict.fromkeys(amounts, 0.0))
    for amount, value in amounts.items():
        setattr(record, amount, getattr(record, amount) * DURATION_MEMORY + value)


def expected_duration(
    session: Session, kind: DurationKind, name: str, variant: str, units: float = 0.0
) -> Expected | None:
    """Return how long something will take; None if it was never measured."""
    record = session.get(Duration, (kind, name, variant[:256]))
    return None if record is None else _expected(record, units)


def _expected(record: Duration, units: float = 0.0) -> Expected:
    """Return a fixed part and one that grows with `units`, by least squares.

    One time more is assumed that was off by itself, so that a single one does not look certain.
    """
    mean_units, mean = record.units / record.number, record.seconds / record.number
    variance = record.units_squared / record.number - mean_units**2
    covariance = record.units_seconds / record.number - mean_units * mean
    slope = max(0.0, covariance / variance) if variance > 1e-9 * mean_units**2 else 0.0
    seconds = max(0.0, mean + slope * (units - mean_units))
    rest = max(0.0, record.seconds_squared / record.number - mean**2 - slope * covariance)
    return Expected(seconds, math.sqrt((seconds**2 + record.number * rest) / (record.number + 1)))


def add_usage(session: Session, project_id: str, seconds: float) -> None:
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
    """Return (requests per second, tokens per second) over the last minute, grouped by a column.

    A group needs two result chunks in it: the first starts the clock, and its answers are older. Without `batch_ids`
    all batches in progress are measured.
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
