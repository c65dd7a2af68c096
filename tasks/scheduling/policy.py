"""The policy: which segment runs next. Plain records in, a decision out; dispatch, forecasts and simulations share it.

The earliest due time goes first (EDF: Liu and Layland 1973), within the limits of the deployment, the model and the
project. What cannot be done within its window any more comes after all that can: under overload it would make that late
too, one after the other. Part of the capacity, `Limits.floor`, is shared evenly among the projects that have work: a
project that was served less than its part of it lately goes before the others, so that none starves while somebody
else's work is always due sooner.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from store.segments import PendingSegment
from store.speeds import USAGE_SECONDS


@dataclass(frozen=True)
class Limits:
    """Most segments at once: in all, per model (one that is not served has none), per project (no entry: no limit).

    `floor`: the part of the capacity, from 0 to 1, that is shared evenly among the projects that have work.
    """

    total: int
    models: Mapping[str, int]
    projects: Mapping[str, int] = field(default_factory=dict)
    min_share: float = 0.25


class RecentUsage:
    """How long each project's segments ran lately: seconds that decay with SERVICE_SECONDS."""

    def __init__(self, seconds: Mapping[str, float], at: float) -> None:
        self._seconds = dict(seconds)
        self._at = at

    def add(self, project_id: str, seconds: float, now: float) -> None:
        # Instead of shrinking what is old, what is new weighs more; shares come out the same.
        age = (now - self._at) / USAGE_SECONDS
        if age > 50:
            self._seconds = {project: value * math.exp(-age) for project, value in self._seconds.items()}
            self._at, age = now, 0.0
        self._seconds[project_id] = self._seconds.get(project_id, 0.0) + seconds * math.exp(age)

    def of(self, project_id: str) -> float:
        """Comparable with others' only."""
        return self._seconds.get(project_id, 0.0)


class Policy:
    """Waiting segments and slots in use, from which `next` picks one segment after the other."""

    def __init__(self, limits: Limits, recent_usage: RecentUsage | None = None) -> None:
        self.limits = limits
        self.recent_usage = recent_usage or RecentUsage({}, 0.0)
        self._queues: dict[str, dict[str, list[PendingSegment]]] = {}
        self._models: Counter[str] = Counter()
        self._projects: Counter[str] = Counter()
        self._with_work: Counter[str] = Counter()
        self._used = 0

    def add(self, waiting: PendingSegment) -> None:
        """A segment that waits from now on."""
        queue = self._queues.setdefault(waiting.model, {}).setdefault(waiting.project_id, [])
        heapq.heappush(queue, waiting)
        self._with_work[waiting.project_id] += 1

    def occupy(self, model: str, project_id: str, slots: int = 1) -> None:
        """Slots that are in use already."""
        self._models[model] += slots
        self._projects[project_id] += slots
        self._with_work[project_id] += slots
        self._used += slots

    def release(self, model: str, project_id: str) -> None:
        """A slot that is free again."""
        self.occupy(model, project_id, -1)
        if not self._with_work[project_id]:
            del self._with_work[project_id]

    def next(self) -> PendingSegment | None:
        """The segment to start now, which has its slot from here on; None if the limits allow none that waits."""
        if self._used >= self.limits.total:
            return None
        heads = list(self._heads())
        if not heads:
            return None
        chosen = self._underserved(heads) or min(heads)
        queue = self._queues[chosen.model][chosen.project_id]
        heapq.heappop(queue)
        if not queue:
            del self._queues[chosen.model][chosen.project_id]
        self._with_work[chosen.project_id] -= 1
        self.occupy(chosen.model, chosen.project_id)
        return chosen

    def _heads(self) -> Iterable[PendingSegment]:
        """The most urgent segment of each model and project that has a slot left."""
        for model, projects in self._queues.items():
            if self._models[model] < self.limits.models.get(model, 0):
                for project_id, queue in projects.items():
                    if self._projects[project_id] < self.limits.projects.get(project_id, math.inf):
                        yield queue[0]

    def _underserved(self, heads: list[PendingSegment]) -> PendingSegment | None:
        """The most urgent segment of the project that is furthest below its floor, if one is."""
        share = self.limits.min_share / len(self._with_work)
        recent_usage = sum(map(self.recent_usage.of, self._with_work))
        slots = max(1.0, share * self.limits.total)
        underserved = [
            (self.recent_usage.of(head.project_id), head)
            for head in heads
            if self.recent_usage.of(head.project_id) < share * recent_usage and self._projects[head.project_id] < slots
        ]
        return min(underserved)[1] if underserved else None


def choose(
    waiting: Iterable[PendingSegment],
    active: Mapping[tuple[str, str], int],
    limits: Limits,
    recent_usage: RecentUsage | None = None,
) -> list[PendingSegment]:
    """The segments to start now.

    Args:
        active: slots in use, per model and project.
    """
    policy = Policy(limits, recent_usage)
    for (model, project_id), slots in active.items():
        policy.occupy(model, project_id, slots)
    for entry in waiting:
        policy.add(entry)
    return list(iter(policy.next, None))
