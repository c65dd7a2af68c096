"""Forecasts: when each batch will be done, from what was measured, with all that runs before it and beside it.

What is left of a batch, in tokens, is divided by its model's measured tokens a second; the queue is replayed through
the policy that dispatch itself follows, so that what runs before a batch is counted as it will be.
Nothing is forecast from what was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from store.queue import BacklogEntry
from store.records import Batch
from store.segments import PendingSegment
from store.speeds import RequestClass, Throughput, work
from tasks.scheduling.policy import Limits, Policy, RecentUsage
from tasks.scheduling.replay import Replay, SegmentCost

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
    entries: Sequence[BacklogEntry],
    answered: Mapping[str, Answered],
    throughputs: Mapping[tuple[str, str], Throughput],
    limits: Limits,
    recent_usage: RecentUsage,
    now: float,
) -> dict[str, Forecast]:
    """A forecast for each batch with a lane, unless something it needs was never measured or cannot run.

    Args:
        answered: by batch, for batches of one model.
        paces: by model and class of requests.
    """
    replay = Replay(Policy(limits, recent_usage), now)
    count = sum(entry.segments for entry in entries)
    ids = iter(range(count + len(entries)))
    left: dict[str, int] = {}
    errors: dict[str, float] = {}
    for entry in sorted(entries):
        throughput = throughput_of(entry.model, entry.request_class, throughputs)
        done = answered.get(entry.batch_id)
        lead, seconds = (0.0, math.inf) if throughput is None else _cost(entry, done, throughput)
        pieces = 1 if entry.active else max(1, round(entry.segments * min(1.0, SEGMENTS / count)))
        for number in range(pieces):
            waiting = PendingSegment(
                entry.infeasible, entry.due_at, entry.batch_id, number, next(ids), entry.model, entry.project_id
            )
            if entry.active:
                replay.resume(waiting, SegmentCost(0.0 if entry.answered else lead, seconds))
            else:
                replay.submit(waiting, SegmentCost(lead / pieces, seconds / pieces))
        left[entry.batch_id] = left.get(entry.batch_id, 0) + pieces
        if throughput is not None:
            error = _error(throughput, done, seconds)
            errors[entry.batch_id] = max(errors.get(entry.batch_id, 0.0), error)
    found = {}
    for at, ended in replay.run():
        left[ended.batch_id] -= 1
        if not left[ended.batch_id]:
            error = 1 + DEVIATIONS * errors[ended.batch_id]
            found[ended.batch_id] = Forecast(at, now + (at - now) / error, now + (at - now) * error)
    return found


def soonest(
    entries: Sequence[BacklogEntry],
    answered: Mapping[str, Answered],
    throughputs: Mapping[tuple[str, str], Throughput],
    now: float,
) -> dict[str, float]:
    """When each batch could be done if nothing else ran and all went well, where its models were measured."""
    needed: dict[tuple[str, str], float] = {}
    for entry in entries:
        throughput, done = throughput_of(entry.model, entry.request_class, throughputs), answered.get(entry.batch_id)
        seconds = 0.0
        if throughput is not None:
            seconds = _cost(entry, done, throughput).work
            seconds /= 1 + DEVIATIONS * _error(throughput, done, seconds)
        key = entry.batch_id, entry.model
        needed[key] = needed.get(key, 0.0) + seconds
    found: dict[str, float] = {}
    for (batch_id, _), seconds in needed.items():
        found[batch_id] = max(found.get(batch_id, 0.0), now + seconds)
    return found


def work_due(
    entries: Sequence[BacklogEntry], answered: Mapping[str, Answered], throughputs: Mapping[tuple[str, str], Throughput]
) -> dict[str, list[tuple[int, float]]]:
    """For each model (due_at, seconds of work that is due by then or sooner), where that was measured."""
    found: dict[str, dict[int, float]] = {}
    for entry in sorted(entries, key=lambda entry: entry.due_at):
        throughput = throughput_of(entry.model, entry.request_class, throughputs)
        if throughput is not None:
            ahead = found.setdefault(entry.model, {})
            before = next(reversed(ahead.values()), 0.0)
            ahead[entry.due_at] = before + _cost(entry, answered.get(entry.batch_id), throughput).work
    return {model: list(ahead.items()) for model, ahead in found.items()}


def single(size: int, throughput: Throughput, ahead: float, now: float) -> Forecast:
    """A forecast for requests of `size` bytes in all, after `ahead` seconds of other work on the same engine."""
    requests = size / throughput.bytes_per_request
    seconds = ahead + throughput.lead_seconds + requests * throughput.work_per_request / throughput.work_per_second
    error = 1 + DEVIATIONS * _error(throughput, None, seconds)
    return Forecast(now + seconds, now + seconds / error, now + seconds * error)


def answered(batches: Iterable[Batch]) -> dict[str, Answered]:
    """What the batches of one model have had answered."""
    return {
        batch.id: Answered(batch.completed + batch.failed, batch.input_tokens + batch.output_tokens)
        for batch in batches
        if batch.model is not None
    }


def _cost(entry: BacklogEntry, done: Answered | None, throughput: Throughput) -> SegmentCost:
    """Of all the lane's segments, one after the other."""
    left = (entry.requests - entry.answered) * _work_per_request(entry, done, throughput)
    return SegmentCost(throughput.lead_seconds * entry.segments, left / throughput.work_per_second)


def throughput_of(
    model: str, kind: RequestClass, throughputs: Mapping[tuple[str, str], Throughput]
) -> Throughput | None:
    """What was measured of the class, or else of the model's other one."""
    return throughputs.get((model, kind)) or throughputs.get((model, "decode" if kind == "prefill" else "prefill"))


def _work_per_request(entry: BacklogEntry, done: Answered | None, throughput: Throughput) -> float:
    """Work of one of the lane's requests: the class's mean at first, then more and more that of the batch itself."""
    usual = throughput.work_per_request
    if entry.request_class == "prefill" and entry.bytes and throughput.bytes_per_request:
        usual *= entry.bytes / entry.requests / throughput.bytes_per_request
    if done is None:
        return usual
    return (PRIOR_REQUESTS * usual + work(done.requests, done.tokens)) / (PRIOR_REQUESTS + done.requests)


def _error(throughput: Throughput, done: Answered | None, seconds: float) -> float:
    """Relative standard error of the time that a lane takes: of the speed, then and until now, and of its requests."""
    speed = throughput.spread**2 * (1 / max(1.0, throughput.measurements) + 1 / max(1.0, seconds))
    requests = REQUEST_SPREAD**2 / (1 + (done.requests if done else 0))
    return math.sqrt(DRIFT**2 + speed + requests)
