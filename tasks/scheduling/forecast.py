"""Forecasts: the expected end of each batch, from measured throughput and a replay of the queue.

The replay follows the same policy as dispatch. A range holds the true end in 80 of 100 cases, if what it assumes is so
(`costs`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from store.queue import BacklogEntry
from store.segments import PendingSegment
from store.speeds import Expected, Throughput
from tasks.scheduling import costs
from tasks.scheduling.costs import DEVIATIONS, NOTHING, CostRange, WorkCosts
from tasks.scheduling.policy import Limits, RecentUsage, SegmentPolicy
from tasks.scheduling.replay import Replay, SegmentCost
from tasks.scheduling.states import Engines

SEGMENTS = 4000
"""Approximate limit of segments to replay. In a longer queue, several segments of a batch are replayed as one."""


class Forecast(NamedTuple):
    """The expected end of a batch and the range in which it probably lies, in Unix seconds."""

    at: float
    earliest: float
    latest: float


def forecast(work_costs: WorkCosts, limits: Limits, recent_usage: RecentUsage, now: float) -> dict[str, Forecast]:
    """Forecast each batch with a backlog entry whose models can run and were measured.

    A batch of the background has no forecast while other work of its model is there: nobody knows when that ends, and
    what comes meanwhile goes first.
    """
    entries = work_costs.entries
    replay = Replay(SegmentPolicy(limits, recent_usage), now)
    count = sum(entry.segments for entry in entries)
    ids = iter(range(count + len(entries)))
    remaining: dict[str, int] = {}
    busy = {entry.model for entry in entries if not entry.background}
    unknown = {entry.batch_id for entry in entries if entry.background and entry.model in busy}
    ranges: dict[int, CostRange] = {}
    for entry in sorted(entries):
        whole = work_costs.of(entry)
        lead, seconds = (0.0, math.inf) if whole is None else whole
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
            if whole is not None:
                ranges[waiting.segment_id] = work_costs.range(entry, cost)
            if entry.active and entry.batch_id not in unknown:
                replay.resume(waiting, cost)
            else:
                replay.submit(waiting, cost)
        remaining[entry.batch_id] = remaining.get(entry.batch_id, 0) + pieces
    forecasts = {}
    passed: dict[str, CostRange] = {}
    for at, ended in replay.run():
        # An end is as uncertain as all that its model does until then.
        passed[ended.model] = until = passed.get(ended.model, CostRange(0.0, 0.0, 0.0)) + ranges[ended.segment_id]
        remaining[ended.batch_id] -= 1
        if not remaining[ended.batch_id]:
            earliest, latest = (
                (until.least / until.seconds, until.most / until.seconds) if until.seconds else (1.0, 1.0)
            )
            forecasts[ended.batch_id] = Forecast(at, now + (at - now) * earliest, now + (at - now) * latest)
    return {batch_id: expected for batch_id, expected in forecasts.items() if batch_id not in unknown}


def soonest(work_costs: WorkCosts, now: float) -> dict[str, float]:
    """Return the earliest end of each batch if nothing else ran; what was not measured takes no time."""
    needed: dict[tuple[str, str], float] = {}
    for entry in work_costs.entries:
        cost = work_costs.of(entry)
        seconds = 0.0 if cost is None else work_costs.range(entry, SegmentCost(0.0, cost.work)).least
        key = entry.batch_id, entry.model
        needed[key] = needed.get(key, 0.0) + seconds
    ends: dict[str, float] = {}
    for (batch_id, _), seconds in needed.items():
        ends[batch_id] = max(ends.get(batch_id, 0.0), now + seconds)
    return ends


def work_due(work_costs: WorkCosts) -> dict[str, list[tuple[int, float]]]:
    """Return (due_at, seconds of foreground work due by then) for each measured model, by `due_at`."""
    work_by_model: dict[str, dict[int, float]] = {}
    for entry in sorted(
        (entry for entry in work_costs.entries if not entry.background), key=lambda entry: entry.due_at
    ):
        cost = work_costs.of(entry)
        if cost is not None:
            ahead = work_by_model.setdefault(entry.model, {})
            before = next(reversed(ahead.values()), 0.0)
            ahead[entry.due_at] = before + cost.work
    return {model: list(ahead.items()) for model, ahead in work_by_model.items()}


def single(size: int, throughput: Throughput, ahead: float, now: float) -> Forecast:
    """Forecast a batch of `size` bytes that starts after `ahead` seconds of other work on the same engine."""
    requests = size / throughput.bytes_per_request
    speed, doubt = throughput.speed(throughput.limit if ahead else requests)
    work_seconds = ahead + requests * throughput.work_per_request / speed
    error = math.exp(doubt + DEVIATIONS * costs.relative_error(throughput, None, requests, work_seconds))
    answers = Forecast(now + work_seconds, now + work_seconds / error, now + work_seconds * error)
    return later(later(answers, throughput.lead), costs.drain(throughput, requests))


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

    A start that was never measured counts as no time. While an engine starts for the first time there is no forecast.
    Without `drains` the emptying is left out.
    """
    answering = {
        entry.model
        for entry in entries
        if entry.active and entry.answered and not engines.cold(entry.model, answered=True)
    }
    running = {entry.batch_id for entry in entries if entry.active and entry.answered}
    starts: dict[str, Expected] = {}
    emptying: dict[str, Expected] = {}
    unknown: set[str] = set()
    for entry in entries:
        throughput = costs.throughput_of(entry.model, entry.request_class, throughputs)
        if throughput is None:
            continue
        if costs.start_is_unknown(entry.model, throughput, engines):
            unknown.add(entry.batch_id)
        start = NOTHING if entry.model in answering else costs.start_delay(entry.model, throughput, engines, now)
        starts[entry.batch_id] = max(starts.get(entry.batch_id, NOTHING), start)
        last = costs.drain(throughput, entry.requests) if drains else NOTHING
        emptying[entry.batch_id] = max(emptying.get(entry.batch_id, NOTHING), last)
    return {
        batch_id: later(later(expected, starts[batch_id]), emptying[batch_id], running=batch_id in running)
        for batch_id, expected in forecasts.items()
        if batch_id not in unknown
    }


def with_chains(
    expected: Forecast,
    throughput: Throughput,
    chains: Iterable[tuple[float, int]],
    unbegun: tuple[float, int] | None,
    now: float,
) -> Forecast:
    """Return the forecast of a job, whose items have turns one after the other.

    Once all items have begun, it ends no sooner than the longest of them. Before, the last ones to begin are assumed to
    end as far apart as chains are: half of their work is that of a full engine, as in `drain`. `chains` has (mean
    number of turns left, items) of the live items; `expected` is the end if no request waited for another.
    """
    if unbegun is None:
        longest = max((costs.chain(throughput, turns, items) for turns, items in chains), default=0.0)
        extra = max(0.0, now + longest - expected.at)
    else:
        turns, items = unbegun
        together = min(throughput.limit / 2, items + sum(number for _, number in chains))
        extra = (costs.chain(throughput, turns, together) - costs.chain(throughput, turns, 1)) / 2
    return later(expected, Expected(extra, extra / DEVIATIONS), running=True)


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
    expected = later(Forecast(since, since, since), finish)
    return Forecast(max(now, expected.at), max(now, expected.earliest), max(now, expected.latest))
