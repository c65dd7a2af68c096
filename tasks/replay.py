"""Replay: runs waiting segments through the policy in simulated time, for forecasts and to test the policy at scale.

A segment that starts first takes its lead (until then the engine has nothing of it), then its work, in seconds of the
engine's time. Segments on one model share its engine: with `capacity` c, each of k segments runs at speed min(1, c/k)
(processor sharing). No time passes here but the one that is replayed; nothing here answers any request.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from store.segments import Waiting
from tasks.policy import Policy


class Cost(NamedTuple):
    """What a segment takes, in seconds: until its first answer, and of the engine's time."""

    lead: float
    work: float


@dataclass
class _Engine:
    """One model's engine. `progress` is the work that each segment in it has had since the beginning."""

    capacity: float
    progress: float = 0.0
    at: float = 0.0
    running: list[tuple[float, int, Waiting]] = field(default_factory=list)
    plan: int = 0

    @property
    def speed(self) -> float:
        return min(1.0, self.capacity / len(self.running)) if self.running else 0.0

    def pass_time(self, now: float) -> None:
        self.progress += (now - self.at) * self.speed
        self.at = now


class Replay:
    """Segments on their way through the policy and the engines."""

    def __init__(
        self, policy: Policy, now: float, capacities: Mapping[str, float] = MappingProxyType({}), capacity: float = 1.0
    ) -> None:
        """`capacities` by model; `capacity` of those that are not named."""
        self.now = now
        self._policy = policy
        self._capacities = capacities
        self._capacity = capacity
        self._engines: dict[str, _Engine] = {}
        self._costs: dict[int, Cost] = {}
        self._started: dict[int, float] = {}
        self._order = itertools.count()
        # (time, order, the segment whose lead ends) or (time, order, (model, plan)): the first to end on a model.
        self._events: list[tuple[float, int, Waiting | tuple[str, int]]] = []

    def submit(self, waiting: Waiting, cost: Cost) -> None:
        """A segment that waits from now on. Infinite work never ends."""
        self._costs[waiting.segment_id] = cost
        self._policy.add(waiting)

    def resume(self, running: Waiting, cost: Cost) -> None:
        """A segment that runs already; its cost is what is left."""
        self._policy.occupy(running.model, running.project_id)
        self._costs[running.segment_id] = cost
        self._start(running)

    def run(self, until: float = math.inf) -> Iterator[tuple[float, Waiting]]:
        """Let time pass until then; the segments that end, each with the time it does."""
        self._fill()
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            if isinstance(what, Waiting):
                self._enter(what)
                continue
            model, plan = what
            engine = self._engines[model]
            if plan != engine.plan:
                continue
            engine.pass_time(self.now)
            _, _, ended = heapq.heappop(engine.running)
            self._plan(model, engine)
            self._policy.release(model, ended.project_id)
            self._policy.service.add(ended.project_id, self.now - self._started.pop(ended.segment_id), self.now)
            yield self.now, ended
            self._fill()
        self.now = max(self.now, until) if until < math.inf else self.now

    def _fill(self) -> None:
        while (waiting := self._policy.next()) is not None:
            self._start(waiting)

    def _start(self, waiting: Waiting) -> None:
        self._started[waiting.segment_id] = self.now
        lead = self._costs[waiting.segment_id].lead
        heapq.heappush(self._events, (self.now + lead, next(self._order), waiting))

    def _enter(self, waiting: Waiting) -> None:
        engine = self._engines.get(waiting.model)
        if engine is None:
            capacity = self._capacities.get(waiting.model, self._capacity)
            engine = self._engines[waiting.model] = _Engine(capacity, at=self.now)
        engine.pass_time(self.now)
        work = self._costs.pop(waiting.segment_id).work
        heapq.heappush(engine.running, (engine.progress + work, next(self._order), waiting))
        self._plan(waiting.model, engine)

    def _plan(self, model: str, engine: _Engine) -> None:
        engine.plan += 1
        if engine.running and engine.running[0][0] < math.inf:
            left = max(0.0, engine.running[0][0] - engine.progress)
            heapq.heappush(self._events, (self.now + left / engine.speed, next(self._order), (model, engine.plan)))
