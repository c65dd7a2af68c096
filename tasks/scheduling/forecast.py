"""Forecasts: the expected end of each batch, from measured throughput and a replay of the queue.

The remaining work of a batch, in tokens, is divided by its model's measured tokens a second. The replay follows the
same policy as dispatch, so it counts the work that will run before a batch. Without a measurement there is no forecast.
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
"""Approximate limit of segments to replay. In a longer queue, several segments of a batch are replayed as one."""
PRIOR_REQUESTS = 16
"""Weight of the class's mean, in requests of the batch itself."""
DRIFT = 0.05
"""Relative error of a speed that remains after any number of measurements: machines are not steadier."""
REQUEST_SPREAD = 0.5
"""Assumed relative deviation of the work of single requests; it is not measured."""
DEVIATIONS = 2.0


@dataclass(frozen=True)
class Forecast:
    """The expected end of a batch and the range in which it probably lies, in Unix seconds."""

    at: float
    earliest: float
    latest: float


@dataclass(frozen=True)
class Answered:
    """Answered requests and their tokens, of a batch that uses one model."""

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
    """Return a forecast for each batch with a backlog entry, unless a model it needs was never measured or cannot run.

    Args:
        entries: one for each batch, model and request class.
        answered: by batch, for batches of one model.
        throughputs: by model and request class.
    """
    replay = Replay(Policy(limits, recent_usage), now)
    count = sum(entry.segments for entry in entries)
    ids = iter(range(count + len(entries)))
    remaining: dict[str, int] = {}
    errors: dict[str, float] = {}
    for entry in sorted(entries):
        throughput = throughput_of(entry.model, entry.request_class, throughputs)
        answers = answered.get(entry.batch_id)
        lead, seconds = (0.0, math.inf) if throughput is None else _cost(entry, answers, throughput)
        pieces = 1 if entry.active else max(1, round(entry.segments * min(1.0, SEGMENTS / count)))
        # Of a segment, also where a piece is several: it drains for as long as all of them.
        unanswered = (entry.requests - entry.answered) / entry.segments
        for number in range(pieces):
            waiting = PendingSegment(
                *(entry.infeasible, entry.due_at, entry.batch_id, number),
                *(next(ids), entry.model, entry.project_id, unanswered),
            )
            if entry.active:
                replay.resume(waiting, SegmentCost(0.0 if entry.answered else lead, seconds))
            else:
                replay.submit(waiting, SegmentCost(lead / pieces, seconds / pieces))
        remaining[entry.batch_id] = remaining.get(entry.batch_id, 0) + pieces
        if throughput is not None:
            error = _error(throughput, answers, seconds)
            errors[entry.batch_id] = max(errors.get(entry.batch_id, 0.0), error)
    forecasts = {}
    for at, ended in replay.run():
        remaining[ended.batch_id] -= 1
        if not remaining[ended.batch_id]:
            error = 1 + DEVIATIONS * errors[ended.batch_id]
            forecasts[ended.batch_id] = Forecast(at, now + (at - now) / error, now + (at - now) * error)
    return forecasts


def soonest(
    entries: Sequence[BacklogEntry],
    answered: Mapping[str, Answered],
    throughputs: Mapping[tuple[str, str], Throughput],
    now: float,
) -> dict[str, float]:
    """Return the earliest end of each batch if nothing else ran, in Unix seconds.

    A model that was never measured counts as no time.
    """
    needed: dict[tuple[str, str], float] = {}
    for entry in entries:
        throughput, answers = throughput_of(entry.model, entry.request_class, throughputs), answered.get(entry.batch_id)
        seconds = 0.0
        if throughput is not None:
            seconds = _cost(entry, answers, throughput).work
            seconds /= 1 + DEVIATIONS * _error(throughput, answers, seconds)
        key = entry.batch_id, entry.model
        needed[key] = needed.get(key, 0.0) + seconds
    ends: dict[str, float] = {}
    for (batch_id, _), seconds in needed.items():
        ends[batch_id] = max(ends.get(batch_id, 0.0), now + seconds)
    return ends


def work_due(
    entries: Sequence[BacklogEntry], answered: Mapping[str, Answered], throughputs: Mapping[tuple[str, str], Throughput]
) -> dict[str, list[tuple[int, float]]]:
    """Return (due_at, seconds of work due by then) for each measured model, in the order of `due_at`."""
    work_by_model: dict[str, dict[int, float]] = {}
    for entry in sorted(entries, key=lambda entry: entry.due_at):
        throughput = throughput_of(entry.model, entry.request_class, throughputs)
        if throughput is not None:
            ahead = work_by_model.setdefault(entry.model, {})
            before = next(reversed(ahead.values()), 0.0)
            ahead[entry.due_at] = before + _cost(entry, answered.get(entry.batch_id), throughput).work
    return {model: list(ahead.items()) for model, ahead in work_by_model.items()}


def single(size: int, throughput: Throughput, ahead: float, now: float) -> Forecast:
    """Forecast a batch of `size` bytes that starts after `ahead` seconds of other work on the same engine."""
    requests = size / throughput.bytes_per_request
    seconds = ahead + throughput.lead_seconds + requests * throughput.work_per_request / throughput.work_per_second
    error = 1 + DEVIATIONS * _error(throughput, None, seconds)
    return Forecast(now + seconds, now + seconds / error, now + seconds * error)


def answered(batches: Iterable[Batch]) -> dict[str, Answered]:
    """Return the answered requests and tokens of each batch that uses one model."""
    return {
        batch.id: Answered(batch.completed + batch.failed, batch.input_tokens + batch.output_tokens)
        for batch in batches
        if batch.model is not None
    }


def _cost(entry: BacklogEntry, answers: Answered | None, throughput: Throughput) -> SegmentCost:
    """Return the cost of all segments of a backlog entry, one after the other."""
    remaining = (entry.requests - entry.answered) * _work_per_request(entry, answers, throughput)
    return SegmentCost(throughput.lead_seconds * entry.segments, remaining / throughput.work_per_second)


def throughput_of(
    model: str, kind: RequestClass, throughputs: Mapping[tuple[str, str], Throughput]
) -> Throughput | None:
    """Return the throughput of the request class, else of the other class, else None."""
    return throughputs.get((model, kind)) or throughputs.get((model, "decode" if kind == "prefill" else "prefill"))


def _work_per_request(entry: BacklogEntry, answers: Answered | None, throughput: Throughput) -> float:
    """Return the mean work of a request. The batch's own answers weigh more the more there are."""
    usual = throughput.work_per_request
    if entry.request_class == "prefill" and entry.bytes and throughput.bytes_per_request:
        usual *= entry.bytes / entry.requests / throughput.bytes_per_request
    if answers is None:
        return usual
    return (PRIOR_REQUESTS * usual + work(answers.requests, answers.tokens)) / (PRIOR_REQUESTS + answers.requests)


def _error(throughput: Throughput, answers: Answered | None, seconds: float) -> float:
    """Return the relative standard error of a duration, from the spread of the speed and of the requests' work."""
    speed = throughput.spread**2 * (1 / max(1.0, throughput.measurements) + 1 / max(1.0, seconds))
    requests = REQUEST_SPREAD**2 / (1 + (answers.requests if answers else 0))
    return math.sqrt(DRIFT**2 + speed + requests)
