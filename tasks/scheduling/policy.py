"""The policy: chooses the next segment. Dispatch, forecasts and simulations share it; it reads no database.

The earliest due time goes first (EDF: Liu and Layland 1973), within the limits of the deployment, the model and the
project. Batches that cannot end within their window come last: under overload they would make the others late, one
after the other. A part of the capacity, `Limits.min_share`, is shared evenly among the projects that have work. A
project that recently used less than its part goes first, so that no project starves while others' work is due sooner.
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
    """The most segments at once.

    Attributes:
        total: of the deployment.
        models: of each model; one without an entry is not served.
        projects: of each project; one without an entry has no limit.
        min_share: part of the capacity, from 0 to 1, that is shared evenly among the projects that have work.
    """

    total: int
    models: Mapping[str, int]
    projects: Mapping[str, int] = field(default_factory=dict)
    min_share: float = 0.25


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


class Policy:
    """Waiting segments and slots in use; `next` starts one segment after the other."""

    def __init__(self, limits: Limits, recent_usage: RecentUsage | None = None) -> None:
        self.limits = limits
        self.recent_usage = recent_usage or RecentUsage({}, 0.0)
        self._queues: dict[str, dict[str, list[PendingSegment]]] = {}
        self._models: Counter[str] = Counter()
        self._projects: Counter[str] = Counter()
        self._with_work: Counter[str] = Counter()
        self._used = 0

    def add(self, waiting: PendingSegment) -> None:
        """Add a segment that waits from now on."""
        queue = self._queues.setdefault(waiting.model, {}).setdefault(waiting.project_id, [])
        heapq.heappush(queue, waiting)
        self._with_work[waiting.project_id] += 1

    def occupy(self, model: str, project_id: str, slots: int = 1) -> None:
        """Mark slots as in use."""
        self._models[model] += slots
        self._projects[project_id] += slots
        self._with_work[project_id] += slots
        self._used += slots

    def release(self, model: str, project_id: str) -> None:
        """Mark a slot as free again."""
        self.occupy(model, project_id, -1)
        if not self._with_work[project_id]:
            del self._with_work[project_id]

    def next(self) -> PendingSegment | None:
        """Return the segment to start now and occupy its slot. None if the limits allow none."""
        if self._used >= self.limits.total:
            return None
        heads = list(self._heads())
        if not heads:
            return None
        head = self._underserved(heads) or min(heads)
        queue = self._queues[head.model][head.project_id]
        heapq.heappop(queue)
        if not queue:
            del self._queues[head.model][head.project_id]
        self._with_work[head.project_id] -= 1
        self.occupy(head.model, head.project_id)
        return head

    def _heads(self) -> Iterable[PendingSegment]:
        """Yield the most urgent segment of each model and project that has a free slot."""
        for model, projects in self._queues.items():
            if self._models[model] < self.limits.models.get(model, 0):
                for project_id, queue in projects.items():
                    if self._projects[project_id] < self.limits.projects.get(project_id, math.inf):
                        yield queue[0]

    def _underserved(self, heads: list[PendingSegment]) -> PendingSegment | None:
        """Return the most urgent segment of the project that is furthest below its share. None if none is below."""
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
    """Return the segments to start now.

    Args:
        active: slots in use, per model and project.
    """
    policy = Policy(limits, recent_usage)
    for (model, project_id), slots in active.items():
        policy.occupy(model, project_id, slots)
    for entry in waiting:
        policy.add(entry)
    return list(iter(policy.next, None))
