"""Replay: runs waiting segments through the policy in simulated time, for forecasts and to test the policy at scale.

A segment that starts first takes its lead (until then the engine has nothing of it), then its work, in seconds of the
engine's time. Segments on one model take turns, as they do in front of a real engine: its engines go to those that
would be done first if each had one alone from when it came. No time passes here but the one that is replayed; nothing
here answers any request.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from store.segments import PendingSegment
from tasks.scheduling.policy import Policy


class SegmentCost(NamedTuple):
    """What a segment takes, in seconds: until its first answer, and of the engine's time."""

    lead: float
    work: float


@dataclass(eq=False)
class _Run:
    """A segment on its way. In front of an engine it has a rank, the lowest goes first; in the engine also an end."""

    segment: PendingSegment
    started: float
    left: float
    rank: tuple[float, int] | None = None
    ends: float | None = None


@dataclass
class _Engines:
    """One model's engines, of which each has one run at a time; runs are known by their rank."""

    number: int
    running: dict[tuple[float, int], _Run] = field(default_factory=dict)
    waiting: list[tuple[tuple[float, int], _Run]] = field(default_factory=list)


class Replay:
    """Segments on their way through the policy and the engines."""

    def __init__(
        self, policy: Policy, now: float, capacities: Mapping[str, int] = MappingProxyType({}), capacity: int = 1
    ) -> None:
        """`capacities` are engines by model; `capacity` those of a model that is not named."""
        self.now = now
        self._policy = policy
        self._capacities = capacities
        self._capacity = capacity
        self._engines: dict[str, _Engines] = {}
        self._costs: dict[int, SegmentCost] = {}
        self._order = itertools.count()
        # (time, order, run): when a run's lead is over, or its work.
        self._events: list[tuple[float, int, _Run]] = []

    def submit(self, waiting: PendingSegment, cost: SegmentCost) -> None:
        """A segment that waits from now on. Infinite work never ends."""
        self._costs[waiting.segment_id] = cost
        self._policy.add(waiting)

    def resume(self, running: PendingSegment, cost: SegmentCost) -> None:
        """A segment that runs already; its cost is what is left."""
        self._policy.occupy(running.model, running.project_id)
        self._start(running, cost)

    def run(self, until: float = math.inf) -> Iterator[tuple[float, PendingSegment]]:
        """Let time pass until then; the segments that end, each with the time it does."""
        self._fill()
        while self._events and self._events[0][0] <= until:
            at, _, run = heapq.heappop(self._events)
            if run.rank is None:
                self.now = at
                self._enter(run)
            elif run.ends == at:  # else it has made way for another since
                self.now = at
                self._leave(run.rank, run)
                yield at, run.segment
                self._fill()
        self.now = max(self.now, until) if until < math.inf else self.now

    def _fill(self) -> None:
        while (waiting := self._policy.next()) is not None:
            self._start(waiting, self._costs.pop(waiting.segment_id))

    def _start(self, segment: PendingSegment, cost: SegmentCost) -> None:
        self._plan(self.now + cost.lead, _Run(segment, self.now, cost.work))

    def _plan(self, at: float, run: _Run) -> None:
        heapq.heappush(self._events, (at, next(self._order), run))

    def _enter(self, run: _Run) -> None:
        model = run.segment.model
        if model not in self._engines:
            self._engines[model] = _Engines(self._capacities.get(model, self._capacity))
        engines = self._engines[model]
        run.rank = self.now + run.left, next(self._order)
        heapq.heappush(engines.waiting, (run.rank, run))
        if len(engines.running) == engines.number and (last := max(engines.running)) > run.rank:
            stopped = engines.running.pop(last)
            stopped.left, stopped.ends = (stopped.ends or 0.0) - self.now, None
            heapq.heappush(engines.waiting, (last, stopped))
        self._give(engines)

    def _leave(self, rank: tuple[float, int], run: _Run) -> None:
        engines = self._engines[run.segment.model]
        del engines.running[rank]
        self._give(engines)
        self._policy.release(run.segment.model, run.segment.project_id)
        self._policy.recent_usage.add(run.segment.project_id, self.now - run.started, self.now)

    def _give(self, engines: _Engines) -> None:
        """Give engines that are free to the runs whose turn it is."""
        while engines.waiting and len(engines.running) < engines.number:
            rank, run = heapq.heappop(engines.waiting)
            engines.running[rank] = run
            run.ends = self.now + run.left
            if run.ends < math.inf:
                self._plan(run.ends, run)
