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

from store.segments import Waiting
from store.speeds import SERVICE_SECONDS


@dataclass(frozen=True)
class Limits:
    """Most segments at once: in all, per model (one that is not served has none), per project (no entry: no limit).

    `floor`: the part of the capacity, from 0 to 1, that is shared evenly among the projects that have work.
    """

    total: int
    models: Mapping[str, int]
    projects: Mapping[str, int] = field(default_factory=dict)
    floor: float = 0.25


class Service:
    """How long each project's segments ran lately: seconds that decay with SERVICE_SECONDS."""

    def __init__(self, seconds: Mapping[str, float], at: float) -> None:
        self._seconds = dict(seconds)
        self._at = at

    def add(self, project_id: str, seconds: float, now: float) -> None:
        # Instead of shrinking what is old, what is new weighs more; shares come out the same.
        age = (now - self._at) / SERVICE_SECONDS
        if age > 50:
            self._seconds = {project: value * math.exp(-age) for project, value in self._seconds.items()}
            self._at, age = now, 0.0
        self._seconds[project_id] = self._seconds.get(project_id, 0.0) + seconds * math.exp(age)

    def of(self, project_id: str) -> float:
        """Comparable with others' only."""
        return self._seconds.get(project_id, 0.0)


class Policy:
    """Waiting segments and slots in use, from which `next` picks one segment after the other."""

    def __init__(self, limits: Limits, service: Service | None = None) -> None:
        self.limits = limits
        self.service = service or Service({}, 0.0)
        self._queues: dict[str, dict[str, list[Waiting]]] = {}
        self._models: Counter[str] = Counter()
        self._projects: Counter[str] = Counter()
        self._with_work: Counter[str] = Counter()
        self._used = 0

    def add(self, waiting: Waiting) -> None:
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

    def next(self) -> Waiting | None:
        """The segment to start now, which has its slot from here on; None if the limits allow none that waits."""
        if self._used >= self.limits.total:
            return None
        heads = list(self._heads())
        if not heads:
            return None
        chosen = self._owed(heads) or min(heads)
        queue = self._queues[chosen.model][chosen.project_id]
        heapq.heappop(queue)
        if not queue:
            del self._queues[chosen.model][chosen.project_id]
        self._with_work[chosen.project_id] -= 1
        self.occupy(chosen.model, chosen.project_id)
        return chosen

    def _heads(self) -> Iterable[Waiting]:
        """The most urgent segment of each model and project that has a slot left."""
        for model, projects in self._queues.items():
            if self._models[model] < self.limits.models.get(model, 0):
                for project_id, queue in projects.items():
                    if self._projects[project_id] < self.limits.projects.get(project_id, math.inf):
                        yield queue[0]

    def _owed(self, heads: list[Waiting]) -> Waiting | None:
        """The most urgent segment of the project that is furthest below its floor, if one is."""
        share = self.limits.floor / len(self._with_work)
        service = sum(map(self.service.of, self._with_work))
        slots = max(1.0, share * self.limits.total)
        owed = [
            (self.service.of(head.project_id), head)
            for head in heads
            if self.service.of(head.project_id) < share * service and self._projects[head.project_id] < slots
        ]
        return min(owed)[1] if owed else None


def choose(
    waiting: Iterable[Waiting], active: Mapping[tuple[str, str], int], limits: Limits, service: Service | None = None
) -> list[Waiting]:
    """The segments to start now.

    Args:
        active: slots in use, per model and project.
    """
    policy = Policy(limits, service)
    for (model, project_id), slots in active.items():
        policy.occupy(model, project_id, slots)
    for entry in waiting:
        policy.add(entry)
    return list(iter(policy.next, None))
