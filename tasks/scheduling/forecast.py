"""Forecasts: the expected end of each batch, from measured throughput and a replay of the queue.

The remaining work of a batch, in tokens, is divided by its model's measured tokens a second. The replay follows the
same policy as dispatch, so it counts the work that will run before a batch. Without a measurement there is no forecast.

A range holds the true end in 80 of 100 cases, if what it assumes is so. What is measured counts with its own spread;
the constants below are assumptions, for what was measured too little.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from store.queue import BacklogEntry
from store.records import Batch
from store.segments import PendingSegment
from store.speeds import Expected, RequestClass, Throughput, work
from tasks.scheduling.policy import Limits, RecentUsage, SegmentPolicy
from tasks.scheduling.replay import Replay, SegmentCost
from tasks.scheduling.states import Engines

SEGMENTS = 4000
"""Approximate limit of segments to replay. In a longer queue, several segments of a batch are replayed as one."""
PRIOR_REQUESTS = 16
"""Weight of the class's mean, in requests of the batch itself."""
DRIFT = 0.1
"""Assumed relative error of a speed after any number of measurements: machines are not steadier."""
MOMENT = 1.0
"""Assumed seconds by which the time of a measured speed is off: the first requests of an engine take longer, and a
machine has busy moments."""
BATCH_SPREAD = 0.5
"""Assumed relative deviation between the mean work of a batch's requests and that of the model's earlier ones."""
DEVIATIONS = 1.28
"""Standard deviations on each side of the mean that hold 80 % of a normal distribution."""
NOTHING = Expected(0.0, 0.0)


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
    """Forecast each batch with a backlog entry whose models can run and were measured.

    Args:
        entries: one for each batch, model and request class.
        answered: by batch, for batches of one model.
        throughputs: by model and request class.
    """
    replay = Replay(SegmentPolicy(limits, recent_usage), now)
    count = sum(entry.segments for entry in entries)
    ids = iter(range(count + len(entries)))
    remaining: dict[str, int] = {}
    in_queue = _in_queue(entries)
    ranges: dict[int, _Range] = {}
    for entry in sorted(entries):
        throughput = throughput_of(entry.model, entry.request_class, throughputs)
        answers = answered.get(entry.batch_id)
        lead, seconds = (0.0, math.inf) if throughput is None else _cost(entry, answers, throughput, in_queue)
        pieces = 1 if entry.active else max(1, round(entry.segments * min(1.0, SEGMENTS / count)))
        # Of a segment, also where a piece is several: it drains for as long as all of them.
        unanswered = (entry.requests - entry.answered) / entry.segments
        for number in range(pieces):
            waiting = PendingSegment(
                *(entry.infeasible, entry.due_at, entry.batch_id, number),
                *(next(ids), entry.model, entry.project_id, unanswered),
                priority=entry.priority,
            )
            cost = SegmentCost(0.0 if entry.answered else lead / pieces, seconds / pieces)
            if throughput is not None:
                ranges[waiting.segment_id] = _range(entry, answers, throughput, in_queue, cost)
            if entry.active:
                replay.resume(waiting, cost)
            else:
                replay.submit(waiting, cost)
        remaining[entry.batch_id] = remaining.get(entry.batch_id, 0) + pieces
    forecasts = {}
    passed: dict[str, _Range] = {}
    for at, ended in replay.run():
        # An end is as uncertain as all that its model does until then.
        passed[ended.model] = until = passed.get(ended.model, _Range(0.0, 0.0, 0.0)) + ranges[ended.segment_id]
        remaining[ended.batch_id] -= 1
        if not remaining[ended.batch_id]:
            earliest, latest = (
                (until.least / until.seconds, until.most / until.seconds) if until.seconds else (1.0, 1.0)
            )
            forecasts[ended.batch_id] = Forecast(at, now + (at - now) * earliest, now + (at - now) * latest)
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
    in_queue = _in_queue(entries)
    for entry in entries:
        throughput, answers = throughput_of(entry.model, entry.request_class, throughputs), answered.get(entry.batch_id)
        seconds = 0.0
        if throughput is not None:
            cost = SegmentCost(0.0, _cost(entry, answers, throughput, in_queue).work)
            seconds = _range(entry, answers, throughput, in_queue, cost).least
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
    in_queue = _in_queue(entries)
    for entry in sorted(entries, key=lambda entry: entry.due_at):
        throughput = throughput_of(entry.model, entry.request_class, throughputs)
        if throughput is not None:
            ahead = work_by_model.setdefault(entry.model, {})
            before = next(reversed(ahead.values()), 0.0)
            ahead[entry.due_at] = before + _cost(entry, answered.get(entry.batch_id), throughput, in_queue).work
    return {model: list(ahead.items()) for model, ahead in work_by_model.items()}


def single(size: int, throughput: Throughput, ahead: float, now: float) -> Forecast:
    """Forecast a batch of `size` bytes that starts after `ahead` seconds of other work on the same engine."""
    requests = size / throughput.bytes_per_request
    speed, doubt = throughput.speed(throughput.limit if ahead else requests)
    work_seconds = ahead + requests * throughput.work_per_request / speed
    error = math.exp(doubt + DEVIATIONS * _error(throughput, None, requests, work_seconds))
    answers = Forecast(now + work_seconds, now + work_seconds / error, now + work_seconds * error)
    return later(later(answers, throughput.lead), drain(throughput, requests))


def with_ends(
    forecasts: Mapping[str, Forecast],
    entries: Sequence[BacklogEntry],
    throughputs: Mapping[tuple[str, str], Throughput],
    engines: Engines,
    now: float,
    *,
    drains: bool = True,
) -> dict[str, Forecast]:
    """Return the forecasts, later by what an engine's full speed leaves out: its start before, its emptying after.

    A start that was never measured counts as no time.

    Args:
        drains: False leaves the emptying out.
    """
    answering = {entry.model for entry in entries if entry.active and entry.answered}
    running = {entry.batch_id for entry in entries if entry.active and entry.answered}
    starts: dict[str, Expected] = {}
    emptying: dict[str, Expected] = {}
    for entry in entries:
        throughput = throughput_of(entry.model, entry.request_class, throughputs)
        if throughput is None:
            continue
        start = NOTHING if entry.model in answering else start_delay(entry.model, throughput, engines, now)
        starts[entry.batch_id] = max(starts.get(entry.batch_id, NOTHING), start)
        last = drain(throughput, entry.requests) if drains else NOTHING
        emptying[entry.batch_id] = max(emptying.get(entry.batch_id, NOTHING), last)
    return {
        batch_id: later(later(expected, starts[batch_id]), emptying[batch_id], running=batch_id in running)
        for batch_id, expected in forecasts.items()
    }


def drain(throughput: Throughput, requests: float) -> Expected:
    """Return how much longer than the mean the longest of the last requests takes.

    The lengths are assumed to be lognormal, with the measured spread. An engine with fewer requests is faster, nobody
    knows how much: the time is between none and that of the longest at the usual pace.
    """
    together = min(requests, throughput.limit)
    if together < 2:
        return NOTHING
    sigma = math.sqrt(math.log(1 + throughput.request_spread**2))
    longest = math.exp(sigma * math.sqrt(2 * math.log(together)) - sigma**2 / 2)
    latency = throughput.in_flight * throughput.work_per_request / throughput.work_per_second  # Little's law
    half = latency * max(0.0, longest - 1) / 2
    return Expected(half, half / DEVIATIONS)


def chain(throughput: Throughput, turns: float, items: float) -> float:
    """Return the seconds of the longest chain of turns that an item has left.

    The lengths of all turns together are assumed to be lognormal, and the longest to be where Blom (1958) expects the
    largest of normal values. What waits in front of the engine is not counted: it keeps twice what it runs at once
    (`ModelSpec.in_flight`), and the last items have it for themselves.
    """
    running = min(throughput.in_flight, max(1.0, throughput.limit / 2))
    seconds = turns * running * throughput.work_per_request / throughput.work_per_second
    sigma = math.sqrt(math.log(1 + throughput.request_spread**2 / max(1.0, turns)))
    place = NormalDist().inv_cdf((max(1.0, items) - 0.375) / (max(1.0, items) + 0.25))
    return seconds * max(1.0, math.exp(sigma * place - sigma**2 / 2))


def with_chains(
    expected: Forecast,
    throughput: Throughput,
    chains: Iterable[tuple[float, int]],
    unbegun: tuple[float, int] | None,
    now: float,
) -> Forecast:
    """Return the forecast of a job, whose items have turns one after the other.

    Once all items have begun, it ends no sooner than the longest of them. Before, the last ones to begin are assumed to
    end as far apart as chains are: half of their work is that of a full engine, as in `drain`.

    Args:
        expected: the end of its requests if none waited for another and the engine did not empty.
        chains: (mean number of turns left, items) of the live items.
        unbegun: the same of the items that have not begun.
    """
    if unbegun is None:
        longest = max((chain(throughput, turns, items) for turns, items in chains), default=0.0)
        extra = max(0.0, now + longest - expected.at)
    else:
        turns, items = unbegun
        together = min(throughput.limit / 2, items + sum(number for _, number in chains))
        extra = (chain(throughput, turns, together) - chain(throughput, turns, 1)) / 2
    return later(expected, Expected(extra, extra / DEVIATIONS), running=True)


def start_delay(model: str, throughput: Throughput, engines: Engines, now: float) -> Expected:
    """Return how long the engine of a model takes until it is there."""
    if throughput.start is None or not engines.cold(model):
        return NOTHING
    waited = now - engines.starting.get(model, now)
    return Expected(max(0.0, throughput.start.seconds - waited), throughput.start.deviation)


def later(expected: Forecast, delay: Expected, *, running: bool = False) -> Forecast:
    """Return a forecast with something more to do before its end.

    Before the first answers errors add up: a speed may be as wrong as it can be, and leaves no room for others to
    cancel out. Those of a `running` batch are independent.
    """
    at, off = expected.at + delay.seconds, DEVIATIONS * delay.deviation
    before, after = expected.at - expected.earliest, expected.latest - expected.at
    total = math.hypot if running else lambda one, other: one + other
    return Forecast(at, at - total(before, min(off, delay.seconds)), at + total(after, off))


def finishing(since: float, finish: Expected, now: float) -> Forecast:
    """Forecast a batch whose last answer came at `since`."""
    expected = later(Forecast(since, since, since), finish)
    return Forecast(max(now, expected.at), max(now, expected.earliest), max(now, expected.latest))


def answered(batches: Iterable[Batch]) -> dict[str, Answered]:
    """Return the answered requests and tokens of each batch that uses one model."""
    return {
        batch.id: Answered(batch.completed + batch.failed, batch.input_tokens + batch.output_tokens)
        for batch in batches
        if batch.model is not None
    }


class _Range(NamedTuple):
    """Seconds that something takes, and the least and the most that it probably takes."""

    seconds: float
    least: float
    most: float

    def __add__(self, other: _Range) -> _Range:  # type: ignore[override]
        return _Range(self.seconds + other.seconds, self.least + other.least, self.most + other.most)


def _in_queue(entries: Iterable[BacklogEntry]) -> Mapping[str, int]:
    """Return the number of requests of each model: so many can be in flight, within its limit.

    Those answered count: the last ones of a segment were begun beside them, and end as far apart as they began.
    """
    in_queue: Counter[str] = Counter()
    for entry in entries:
        in_queue[entry.model] += entry.requests
    return in_queue


def _cost(
    entry: BacklogEntry, answers: Answered | None, throughput: Throughput, in_queue: Mapping[str, int]
) -> SegmentCost:
    """Return the cost of all segments of a backlog entry, one after the other."""
    remaining = (entry.requests - entry.answered) * _work_per_request(entry, answers, throughput)
    speed, _ = throughput.speed(in_queue[entry.model])
    return SegmentCost(throughput.lead.seconds * entry.segments, remaining / speed)


def _range(
    entry: BacklogEntry,
    answers: Answered | None,
    throughput: Throughput,
    in_queue: Mapping[str, int],
    cost: SegmentCost,
) -> _Range:
    """Return the range of one segment's cost, or of several that are replayed as one."""
    _, doubt = throughput.speed(in_queue[entry.model])
    left = max(1.0, entry.requests - entry.answered)
    error = math.exp(doubt + DEVIATIONS * _error(throughput, answers, left, cost.work))
    lead = throughput.lead
    off = min(1.0, DEVIATIONS * lead.deviation / lead.seconds) if lead.seconds else 0.0
    return _Range(sum(cost), cost.lead * (1 - off) + cost.work / error, cost.lead * (1 + off) + cost.work * error)


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


def _error(throughput: Throughput, answers: Answered | None, left: float, seconds: float) -> float:
    """Return the relative standard error of a duration: the spread of speed and work.

    Args:
        left: the number of requests.
        seconds: that they take.
    """
    # Requests are counted in stretches of time: as any count, and those in flight at its ends are in or out by chance.
    counted = (1 + throughput.request_spread**2) / throughput.requests
    counted += (throughput.in_flight / throughput.requests) ** 2 / 12
    measured_seconds = throughput.requests * throughput.work_per_request / throughput.work_per_second
    moment = (MOMENT / (MOMENT + measured_seconds)) ** 2
    usual = throughput.spread**2 * (1 / max(1.0, throughput.measurements) + 1 / max(1.0, seconds))
    single, answered = throughput.request_spread**2, answers.requests if answers else 0
    mean = BATCH_SPREAD**2  # of the mean of a batch of which nothing is answered; with each answer it becomes less
    if answered:
        mean *= single / (single + answered * mean)
    return math.sqrt(DRIFT**2 + counted + moment + usual + mean + single / left)
