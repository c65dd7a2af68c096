"""Replay: runs waiting segments through the policy in simulated time, for forecasts and for tests of the policy.

A segment first takes its lead, in which no engine works on it, then its work, in seconds of an engine. Segments of one
model share its engines as in front of a real engine: the one that would end first, alone on an engine from its arrival
on, goes first. A segment drains once fewer of its requests remain than fill an engine: the next one may start, so that
its lead passes meanwhile. Nothing here answers a request.
"""

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from store.segments import PendingSegment
from tasks.scheduling.policy import SegmentPolicy

DRAINING = 0.5
"""Load of a segment while it drains: the mean of what it falls through."""


class SegmentCost(NamedTuple):
    """Seconds a segment takes: `lead` before an engine works on it, `work` of the engine."""

    lead: float
    work: float


@dataclass(eq=False)
class _Run:
    """A segment that was started.

    `rank` is its place in front of the engines, lowest first; None during its lead. `tail` is the work for which it
    drains. `drains` and `ends` are times, None while no engine works on it.
    """

    segment: PendingSegment
    started: float
    remaining: float
    tail: float
    rank: tuple[float, int] | None = None
    drains: float | None = None
    ends: float | None = None


@dataclass
class _Engines:
    """One model's engines, with one run each at a time. Runs are keyed by rank."""

    number: int
    running: dict[tuple[float, int], _Run] = field(default_factory=dict)
    waiting: list[tuple[tuple[float, int], _Run]] = field(default_factory=list)


class Replay:
    """Segments that go through the policy and the engines."""

    def __init__(
        self, policy: SegmentPolicy, now: float, capacities: Mapping[str, int] = MappingProxyType({}), capacity: int = 1
    ) -> None:
        """`capacities`: engines by model. `capacity`: engines of every other model."""
        self.now = now
        self._policy = policy
        self._capacities = capacities
        self._capacity = capacity
        self._engines: dict[str, _Engines] = {}
        self._costs: dict[int, SegmentCost] = {}
        self._order = itertools.count()
        # (time, order, run): the end of a run's lead, the begin of its draining, or the end of its work.
        self._events: list[tuple[float, int, _Run]] = []

    def submit(self, waiting: PendingSegment, cost: SegmentCost) -> None:
        """Add a segment that waits from now on. Infinite work never ends."""
        self._costs[waiting.segment_id] = cost
        self._policy.add(waiting)

    def resume(self, running: PendingSegment, cost: SegmentCost) -> None:
        """Add a segment that runs already. Its cost is what remains of it."""
        self._policy.occupy(running)
        self._start(running, cost)

    def run(self, until: float = math.inf) -> Iterator[tuple[float, PendingSegment]]:
        """Let time pass until `until`. Yield (time, segment) for each segment that ends."""
        self._fill()
        while self._events and self._events[0][0] <= until:
            at, _, run = heapq.heappop(self._events)
            if run.rank is None:
                self.now = at
                self._enter(run)
            elif run.drains == at:  # otherwise another run has displaced it since
                self.now = at
                run.tail, run.drains = 0.0, None
                self._policy.set_load(run.segment, DRAINING)
                self._fill()
            elif run.ends == at:
                self.now = at
                self._leave(run.rank, run)
                yield at, run.segment
                self._fill()
        self.now = max(self.now, until) if until < math.inf else self.now

    def _fill(self) -> None:
        while (waiting := self._policy.next()) is not None:
            self._start(waiting, self._costs.pop(waiting.segment_id))

    def _start(self, segment: PendingSegment, cost: SegmentCost) -> None:
        limits = self._policy.limits
        tail = 0.0
        if 0 < cost.work < math.inf and limits.load(segment) == 1.0:
            tail = cost.work * limits.fills.get(segment.model, 0.0) / segment.unanswered
        self._schedule(self.now + cost.lead, _Run(segment, self.now, cost.work, tail))

    def _schedule(self, at: float, run: _Run) -> None:
        heapq.heappush(self._events, (at, next(self._order), run))

    def _enter(self, run: _Run) -> None:
        model = run.segment.model
        if model not in self._engines:
            self._engines[model] = _Engines(self._capacities.get(model, self._capacity))
        engines = self._engines[model]
        run.rank = self.now + run.remaining, next(self._order)
        heapq.heappush(engines.waiting, (run.rank, run))
        if len(engines.running) == engines.number and (last := max(engines.running)) > run.rank:
            displaced = engines.running.pop(last)
            displaced.remaining = (displaced.ends or 0.0) - self.now
            displaced.drains = displaced.ends = None
            heapq.heappush(engines.waiting, (last, displaced))
        self._assign(engines)

    def _leave(self, rank: tuple[float, int], run: _Run) -> None:
        engines = self._engines[run.segment.model]
        del engines.running[rank]
        run.ends = None  # there is a second event of this time if it was displaced for no time
        self._assign(engines)
        self._policy.release(run.segment)
        self._policy.recent_usage.add(run.segment.project_id, self.now - run.started, self.now)

    def _assign(self, engines: _Engines) -> None:
        while engines.waiting and len(engines.running) < engines.number:
            rank, run = heapq.heappop(engines.waiting)
            engines.running[rank] = run
            run.ends = self.now + run.remaining
            if run.tail:
                run.drains = max(self.now, run.ends - run.tail)
                self._schedule(run.drains, run)
            if run.ends < math.inf:
                self._schedule(run.ends, run)
