"""The policy: chooses the next segment. Dispatch, forecasts and simulations share it; it reads no database.

What segments occupy is counted in loads. A segment whose unanswered requests fill its model's engine is a load of 1.
One that drains, and one that is small, is the part that it fills. So a model gets its next segment before its engine
runs dry, and small segments run side by side. A model whose engine is full gets no further segment, unless that one is
due sooner than what fills the engine. A model that has no segment goes before any other model's further one.

Otherwise the earliest due time goes first (EDF: Liu and Layland 1973), within the limits of the deployment, the model
and the project. docs/design.md says how priorities, the background and shares of projects change that.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from store.segments import PendingSegment
from store.speeds import USAGE_SECONDS

UNITS = 2**20
"""Loads are multiples of 1/UNITS, so that sums of them are exact."""


@dataclass(frozen=True)
class Limits:
    """The most load at once. A segment starts while there is less."""

    total: int  # of the deployment
    models: Mapping[str, int]  # of each model; one without an entry is not served
    projects: Mapping[str, int] = field(default_factory=dict)  # of each project; one without an entry has no limit
    # Part of the capacity, from 0 to 1, that is shared evenly among the projects that have work
    min_share: float = 0.25
    # Unanswered requests of each model below which its engine may run dry. Segments of a model without an entry are a
    # load of 1 to their end.
    fills: Mapping[str, float] = field(default_factory=dict)
    # Load at which each model's engines are full; 1 without an entry, as a segment runs on all replicas
    engines: Mapping[str, int] = field(default_factory=dict)
    # The most segments, whatever their load. The last `total` are kept for models that have none.
    running: float = math.inf

    def load(self, segment: PendingSegment) -> float:
        """Return the part of its model's engine that a segment fills, from 0 to 1."""
        fill = self.fills.get(segment.model)
        return 1.0 if fill is None else math.ceil(min(1.0, segment.unanswered / fill) * UNITS) / UNITS

    def reached(self, load: float, number: int) -> bool:
        """Return whether `number` running segments with this load leave no room for any other."""
        return load >= self.total or number >= self.running


class RecentUsage:
    """Recent run time of each project's segments, in seconds that decay with the time constant USAGE_SECONDS."""

    def __init__(self, seconds: Mapping[str, float], at: float) -> None:
        self._seconds = dict(seconds)
        self._at = at

    def copy(self) -> RecentUsage:
        return RecentUsage(self._seconds, self._at)

    def add(self, project_id: str, seconds: float, now: float) -> None:
        # New seconds grow instead of old ones shrinking; the shares are the same.
        age = (now - self._at) / USAGE_SECONDS
        if age > 50:
            self._seconds = {project: value * math.exp(-age) for project, value in self._seconds.items()}
            self._at, age = now, 0.0
        self._seconds[project_id] = self._seconds.get(project_id, 0.0) + seconds * math.exp(age)

    def of(self, project_id: str) -> float:
        """Return the weighted seconds of a project. They compare with other projects' only."""
        return self._seconds.get(project_id, 0.0)


class _Loads:
    """The load of running segments: in all, and of each model and project; and how many run of each model."""

    def __init__(self) -> None:
        self.total = 0.0
        self.models: defaultdict[str, float] = defaultdict(float)
        self.projects: defaultdict[str, float] = defaultdict(float)
        self.numbers: Counter[str] = Counter()

    def add(self, segment: PendingSegment, load: float, number: int = 0) -> None:
        self.total += load
        self.models[segment.model] += load
        self.projects[segment.project_id] += load
        self.numbers[segment.model] += number


class SegmentPolicy:
    """Waiting and running segments; `next` starts one segment after the other."""

    def __init__(self, limits: Limits, recent_usage: RecentUsage | None = None) -> None:
        self.limits = limits
        self.recent_usage = recent_usage or RecentUsage({}, 0.0)
        self._queues: dict[str, dict[str, list[tuple[int, PendingSegment]]]] = {}
        # Running segments with their loads, by model and id.
        self._running: defaultdict[str, dict[int, tuple[PendingSegment, float]]] = defaultdict(dict)
        self._number = 0
        self._all = _Loads()
        self._foreground = _Loads()
        self._with_work: Counter[str] = Counter()

    def add(self, waiting: PendingSegment) -> None:
        queue = self._queues.setdefault(waiting.model, {}).setdefault(waiting.project_id, [])
        heapq.heappush(queue, (-waiting.priority, waiting))
        self._with_work[waiting.project_id] += not waiting.background

    def occupy(self, segment: PendingSegment) -> None:
        self._number += 1
        self._with_work[segment.project_id] += not segment.background
        for loads in self._loads_with(segment):
            loads.add(segment, 0.0, 1)
        self.set_load(segment, self.limits.load(segment))

    def set_load(self, segment: PendingSegment, load: float) -> None:
        running = self._running[segment.model]
        _, before = running.get(segment.segment_id, (segment, 0.0))
        running[segment.segment_id] = segment, load
        for loads in self._loads_with(segment):
            loads.add(segment, load - before)

    def release(self, segment: PendingSegment) -> None:
        self.set_load(segment, 0.0)
        del self._running[segment.model][segment.segment_id]
        for loads in self._loads_with(segment):
            loads.add(segment, 0.0, -1)
        self._number -= 1
        self._forget_work(segment)

    def next(self) -> PendingSegment | None:
        """Return the segment to start now, which runs from now on. None if the limits allow none."""
        head = self._first(self._foreground, background=False) or self._first(self._all, background=True)
        if head is None:
            return None
        queue = self._queues[head.model][head.project_id]
        heapq.heappop(queue)
        if not queue:
            del self._queues[head.model][head.project_id]
        self.occupy(head)
        self._forget_work(head)
        return head

    def _loads_with(self, segment: PendingSegment) -> tuple[_Loads, ...]:
        return (self._all,) if segment.background else (self._all, self._foreground)

    def _first(self, loads: _Loads, *, background: bool) -> PendingSegment | None:
        """Return the first of the segments that are of the background or not, beside these loads."""
        if self.limits.reached(loads.total, self._number):
            return None
        heads = list(self._heads(loads, background=background))
        if idle := [head for head in heads if not loads.numbers[head.model]]:
            heads = idle
        elif self._number >= self.limits.running - self.limits.total:
            return None
        if background:
            return min(heads, key=lambda head: (self.recent_usage.of(head.project_id), head), default=None)
        return (self._underserved(heads) or min(heads)) if heads else None

    def _forget_work(self, segment: PendingSegment) -> None:
        if segment.background:
            return
        self._with_work[segment.project_id] -= 1
        if not self._with_work[segment.project_id]:
            del self._with_work[segment.project_id]

    def _heads(self, loads: _Loads, *, background: bool) -> Iterable[PendingSegment]:
        """Yield the first segment of each model and project, if it may start beside these loads."""
        for model, projects in self._queues.items():
            if loads.models[model] < self.limits.models.get(model, 0):
                for project_id, queue in projects.items():
                    within = loads.projects[project_id] < self.limits.projects.get(project_id, math.inf)
                    _, head = queue[0]
                    if within and head.background == background and self._has_room(head, loads):
                        yield head

    def _has_room(self, segment: PendingSegment, loads: _Loads) -> bool:
        """True if what runs of the model and is due no later leaves a part of its engines free."""
        full = self.limits.engines.get(segment.model, 1)
        if loads.models[segment.model] < full:
            return True
        if segment.background:
            return False
        running = self._running[segment.model].values()
        return sum(load for other, load in running if not other.background and other[:2] <= segment[:2]) < full

    def _underserved(self, heads: list[PendingSegment]) -> PendingSegment | None:
        """Return the most urgent segment of the project furthest below its share, if any is."""
        share = self.limits.min_share / len(self._with_work)
        recent_usage = sum(map(self.recent_usage.of, self._with_work))
        most = max(1.0, share * self.limits.total)
        projects = self._foreground.projects
        underserved = [
            (self.recent_usage.of(head.project_id), head)
            for head in heads
            if self.recent_usage.of(head.project_id) < share * recent_usage and projects[head.project_id] < most
        ]
        return min(underserved)[1] if underserved else None


def choose(
    waiting: Iterable[PendingSegment],
    running: Iterable[PendingSegment],
    limits: Limits,
    recent_usage: RecentUsage | None = None,
) -> list[PendingSegment]:
    """Return the waiting segments to start now, beside those that run."""
    policy = SegmentPolicy(limits, recent_usage)
    for segment in running:
        policy.occupy(segment)
    for segment in waiting:
        policy.add(segment)
    return list(iter(policy.next, None))
