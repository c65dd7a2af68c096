"""Costs: the seconds that work takes on measured engines, and how far they may be off."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from store.queue import BacklogEntry
from store.records import Batch
from store.speeds import Expected, RequestClass, Throughput, work
from tasks.scheduling.replay import SegmentCost
from tasks.scheduling.states import Engines

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
class Answered:
    """Answered requests and their tokens, of a batch that uses one model."""

    requests: int
    tokens: int


def answered(batches: Iterable[Batch]) -> dict[str, Answered]:
    return {
        batch.id: Answered(batch.completed + batch.failed, batch.input_tokens + batch.output_tokens)
        for batch in batches
        if batch.model is not None
    }


def throughput_of(
    model: str, kind: RequestClass, throughputs: Mapping[tuple[str, str], Throughput]
) -> Throughput | None:
    """Return the throughput of the request class, else of the other class, else None."""
    return throughputs.get((model, kind)) or throughputs.get((model, "decode" if kind == "prefill" else "prefill"))


class CostRange(NamedTuple):
    """Seconds that work takes, and the least and the most that it probably takes."""

    seconds: float
    least: float
    most: float

    def __add__(self, other: CostRange) -> CostRange:  # type: ignore[override]
        return CostRange(self.seconds + other.seconds, self.least + other.least, self.most + other.most)


class WorkCosts:
    """What the entries of a backlog cost, where their models were measured."""

    def __init__(
        self,
        entries: Sequence[BacklogEntry],
        answered: Mapping[str, Answered],
        throughputs: Mapping[tuple[str, str], Throughput],
    ) -> None:
        """`entries`: one for each batch, model and class; `answered`: by batch of one model."""
        self.entries = entries
        self._answered = answered
        self._throughputs = throughputs
        # So many requests of a model can be in flight, within its limit. Those answered count: the last ones of a
        # segment were begun beside them, and end as far apart as they began.
        self._in_queue: Counter[str] = Counter()
        for entry in entries:
            self._in_queue[entry.model] += entry.requests

    def of(self, entry: BacklogEntry) -> SegmentCost | None:
        """Return the cost of all segments of an entry, one after the other; None if its model was not measured."""
        throughput = throughput_of(entry.model, entry.request_class, self._throughputs)
        if throughput is None:
            return None
        per_request = throughput.work_per_request
        if entry.request_class == "prefill" and entry.bytes and throughput.bytes_per_request:
            per_request *= entry.bytes / entry.requests / throughput.bytes_per_request
        if (answers := self._answered.get(entry.batch_id)) is not None:  # they weigh more the more there are
            known = PRIOR_REQUESTS * per_request + work(answers.requests, answers.tokens)
            per_request = known / (PRIOR_REQUESTS + answers.requests)
        remaining = (entry.requests - entry.answered) * per_request
        speed, _ = throughput.speed(self._in_queue[entry.model])
        return SegmentCost(throughput.lead.seconds * entry.segments, remaining / speed)

    def range(self, entry: BacklogEntry, cost: SegmentCost) -> CostRange:
        """Return the range of the cost of one segment of an entry, or of several that are replayed as one."""
        throughput = throughput_of(entry.model, entry.request_class, self._throughputs)
        assert throughput is not None, "what was not measured has no cost"
        _, doubt = throughput.speed(self._in_queue[entry.model])
        left = max(1.0, entry.requests - entry.answered)
        error = relative_error(throughput, self._answered.get(entry.batch_id), left, cost.work)
        factor = math.exp(doubt + DEVIATIONS * error)
        lead = throughput.lead
        off = min(1.0, DEVIATIONS * lead.deviation / lead.seconds) if lead.seconds else 0.0
        return CostRange(
            sum(cost), cost.lead * (1 - off) + cost.work / factor, cost.lead * (1 + off) + cost.work * factor
        )


def relative_error(throughput: Throughput, answers: Answered | None, left: float, seconds: float) -> float:
    """Return the relative standard error of the `seconds` of the requests left, by speed and work."""
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


def start_is_unknown(model: str, throughput: Throughput, engines: Engines) -> bool:
    """True while the engine of a model starts, and nobody has measured how long that takes."""
    return throughput.start is None and model in engines.starting and engines.cold(model)


def start_delay(model: str, throughput: Throughput, engines: Engines, now: float) -> Expected:
    """Return how long the engine of a model takes until it is there."""
    if throughput.start is None or not engines.cold(model):
        return NOTHING
    waited = now - engines.starting.get(model, now)
    return Expected(max(0.0, throughput.start.seconds - waited), throughput.start.deviation)
