"""Forecasts: when each batch will be done, from what was measured, with all that runs before it and beside it.

What is left of a batch, in tokens, is divided by its model's measured tokens a second; the queue is replayed through
the policy that dispatch itself follows, so that what runs before a batch is counted as it will be.
Nothing is forecast from what was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from store.queue import Lane
from store.records import Batch
from store.segments import Waiting
from store.speeds import Pace, RequestClass, work
from tasks.scheduling.policy import Limits, Policy, Service
from tasks.scheduling.replay import Cost, Replay

SEGMENTS = 4000
"""Segments to replay at most, about: in a longer queue those of one batch are replayed several at a time."""
PRIOR_REQUESTS = 16
"""The class's mean counts as much as this many requests of the batch itself."""
DRIFT = 0.05
"""Relative error of a speed that was measured for ever: machines are not that steady."""
REQUEST_SPREAD = 0.5
"""Assumed relative deviation of the work of single requests; nothing of the kind is kept."""
DEVIATIONS = 2.0


@dataclass(frozen=True)
class Forecast:
    """When a batch will be done, in Unix seconds, and between which times it probably will."""

    at: float
    earliest: float
    latest: float


@dataclass(frozen=True)
class Answered:
    """What a batch that uses one model has had answered: requests, and their tokens."""

    requests: int
    tokens: int


def forecast(
    lanes: Sequence[Lane],
    answered: Mapping[str, Answered],
    paces: Mapping[tuple[str, str], Pace],
    limits: Limits,
    service: Service,
    now: float,
) -> dict[str, Forecast]:
    """A forecast for each batch with a lane, unless something it needs was never measured or cannot run.

    Args:
        answered: by batch, for batches of one model.
        paces: by model and class of requests.
    """
    replay = Replay(Policy(limits, service), now)
    count = sum(lane.segments for lane in lanes)
    ids = iter(range(count + len(lanes)))
    left: dict[str, int] = {}
    errors: dict[str, float] = {}
    for lane in sorted(lanes):
        pace = pace_of(lane.model, lane.request_class, paces)
        done = answered.get(lane.batch_id)
        lead, seconds = (0.0, math.inf) if pace is None else _cost(lane, done, pace)
        pieces = 1 if lane.active else max(1, round(lane.segments * min(1.0, SEGMENTS / count)))
        for number in range(pieces):
            waiting = Waiting(
                lane.out_of_reach, lane.due_at, lane.batch_id, number, next(ids), lane.model, lane.project_id
            )
            if lane.active:
                replay.resume(waiting, Cost(0.0 if lane.answered else lead, seconds))
            else:
                replay.submit(waiting, Cost(lead / pieces, seconds / pieces))
        left[lane.batch_id] = left.get(lane.batch_id, 0) + pieces
        if pace is not None:
            error = _error(pace, done, seconds)
            errors[lane.batch_id] = max(errors.get(lane.batch_id, 0.0), error)
    found = {}
    for at, ended in replay.run():
        left[ended.batch_id] -= 1
        if not left[ended.batch_id]:
            error = 1 + DEVIATIONS * errors[ended.batch_id]
            found[ended.batch_id] = Forecast(at, now + (at - now) / error, now + (at - now) * error)
    return found


def soonest(
    lanes: Sequence[Lane], answered: Mapping[str, Answered], paces: Mapping[tuple[str, str], Pace], now: float
) -> dict[str, float]:
    """When each batch could be done if nothing else ran and all went well, where its models were measured."""
    needed: dict[tuple[str, str], float] = {}
    for lane in lanes:
        pace, done = pace_of(lane.model, lane.request_class, paces), answered.get(lane.batch_id)
        seconds = 0.0
        if pace is not None:
            seconds = _cost(lane, done, pace).work
            seconds /= 1 + DEVIATIONS * _error(pace, done, seconds)
        key = lane.batch_id, lane.model
        needed[key] = needed.get(key, 0.0) + seconds
    found: dict[str, float] = {}
    for (batch_id, _), seconds in needed.items():
        found[batch_id] = max(found.get(batch_id, 0.0), now + seconds)
    return found


def backlog(
    lanes: Sequence[Lane], answered: Mapping[str, Answered], paces: Mapping[tuple[str, str], Pace]
) -> dict[str, list[tuple[int, float]]]:
    """For each model (due_at, seconds of work that is due by then or sooner), where that was measured."""
    found: dict[str, dict[int, float]] = {}
    for lane in sorted(lanes, key=lambda lane: lane.due_at):
        pace = pace_of(lane.model, lane.request_class, paces)
        if pace is not None:
            ahead = found.setdefault(lane.model, {})
            before = next(reversed(ahead.values()), 0.0)
            ahead[lane.due_at] = before + _cost(lane, answered.get(lane.batch_id), pace).work
    return {model: list(ahead.items()) for model, ahead in found.items()}


def single(size: int, pace: Pace, ahead: float, now: float) -> Forecast:
    """A forecast for requests of `size` bytes in all, after `ahead` seconds of other work on the same engine."""
    requests = size / pace.bytes_per_request
    seconds = ahead + pace.lead_seconds + requests * pace.work_per_request / pace.work_per_second
    error = 1 + DEVIATIONS * _error(pace, None, seconds)
    return Forecast(now + seconds, now + seconds / error, now + seconds * error)


def answered(batches: Iterable[Batch]) -> dict[str, Answered]:
    """What the batches of one model have had answered."""
    return {
        batch.id: Answered(batch.completed + batch.failed, batch.input_tokens + batch.output_tokens)
        for batch in batches
        if batch.model is not None
    }


def _cost(lane: Lane, done: Answered | None, pace: Pace) -> Cost:
    """Of all the lane's segments, one after the other."""
    left = (lane.requests - lane.answered) * _work_per_request(lane, done, pace)
    return Cost(pace.lead_seconds * lane.segments, left / pace.work_per_second)


def pace_of(model: str, kind: RequestClass, paces: Mapping[tuple[str, str], Pace]) -> Pace | None:
    """What was measured of the class, or else of the model's other one."""
    return paces.get((model, kind)) or paces.get((model, "decode" if kind == "prefill" else "prefill"))


def _work_per_request(lane: Lane, done: Answered | None, pace: Pace) -> float:
    """Work of one of the lane's requests: the class's mean at first, then more and more that of the batch itself."""
    usual = pace.work_per_request
    if lane.request_class == "prefill" and lane.bytes and pace.bytes_per_request:
        usual *= lane.bytes / lane.requests / pace.bytes_per_request
    if done is None:
        return usual
    return (PRIOR_REQUESTS * usual + work(done.requests, done.tokens)) / (PRIOR_REQUESTS + done.requests)


def _error(pace: Pace, done: Answered | None, seconds: float) -> float:
    """Relative standard error of the time that a lane takes: of the speed, then and until now, and of its requests."""
    speed = pace.spread**2 * (1 / max(1.0, pace.measurements) + 1 / max(1.0, seconds))
    requests = REQUEST_SPREAD**2 / (1 + (done.requests if done else 0))
    return math.sqrt(DRIFT**2 + speed + requests)
