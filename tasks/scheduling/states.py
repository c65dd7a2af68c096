"""States: what a batch that has not ended does now."""

from __future__ import annotations

import heapq
import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Literal

from batchyard.statuses import TERMINAL
from store.queue import BacklogEntry
from tasks import published
from tasks.context import AppContext

log = logging.getLogger(__name__)

STATES = "batchyard:states"
NAMED = 3
"""The most batches ahead that are named."""

StateName = Literal["validating", "waiting", "starting_engine", "running", "open", "held", "paused", "finishing"]


@dataclass(frozen=True)
class BatchActivity:
    """What a batch does."""

    name: StateName
    # Of a waiting batch, the number of batches of all projects that run, or are due, before it; None if nobody has
    # counted them yet
    behind: int | None = None
    behind_ids: Sequence[str] = ()  # the first of those of its own project
    running: int | None = None  # of those, the number that run
    model: str | None = None  # the model whose engines they have; None if they have all slots of the deployment
    # The batch that runs next: itself, or one before it of its own project; None if that is another's
    next_id: str | None = None
    infeasible: bool = False  # True if it goes behind all that can end within their windows
    usual_seconds: float | None = None  # of the engine's start
    reason: str | None = None


@dataclass(frozen=True)
class Engines:
    """The models that have an engine, and since when (Unix seconds) somebody waits for the start of others."""

    models: Set[str]
    starting: Mapping[str, float]

    def cold(self, model: str, *, answered: bool = False) -> bool:
        """True if work for the model waits for its engine. `answered`: the work has answers already."""
        return model not in self.models and (not answered or model in self.starting)


def of_queue(
    entries: Sequence[BacklogEntry], answered: Set[str], engines: Engines, usual_seconds: Mapping[str, float]
) -> dict[str, BatchActivity]:
    """Return whether each batch with a backlog entry runs, waits, or has its engine started for it.

    The entries are without those of models on hold; `answered` are the batches that have an answer.
    """
    active: dict[str, list[BacklogEntry]] = defaultdict(list)
    for entry in entries:
        if entry.active:
            active[entry.batch_id].append(entry)
    states: dict[str, BatchActivity] = {}
    for batch_id, of_batch in active.items():
        cold = {
            entry.model
            for entry in of_batch
            if engines.cold(entry.model, answered=bool(entry.answered) or batch_id in answered)
        }
        if not cold or any(entry.answered and entry.model not in cold for entry in of_batch):
            states[batch_id] = BatchActivity("running")
        else:
            states[batch_id] = BatchActivity("starting_engine", usual_seconds=usual_seconds.get(min(cold)))
    everywhere = _Line(None)
    lines: dict[str, _Line] = {}
    for entry in _in_order(entries):
        if entry.active:
            everywhere.add(entry)
        line = lines.setdefault(entry.model, _Line(entry.model))
        if entry.batch_id not in active and entry.batch_id not in line.members:
            # A batch of another model holds it up only if all slots are taken.
            waiting = (line if line.members else everywhere).behind(entry)
            other = states.get(entry.batch_id, waiting)
            states[entry.batch_id] = min(waiting, other, key=lambda state: state.behind or 0)
        line.add(entry)
    return states


def _in_order(entries: Sequence[BacklogEntry]) -> Iterator[BacklogEntry]:
    """Yield the entries in the order of the policy, with what runs at its head."""
    yield from sorted((entry for entry in entries if entry.active), key=_urgency)
    lines: dict[tuple[str, str, bool], list[BacklogEntry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: (-entry.priority, _urgency(entry))):
        if not entry.active:
            lines[entry.model, entry.project_id, entry.background].append(entry)
    # A line is sorted by priority first, and the most urgent head of all lines is next.
    yield from heapq.merge(*(lines[key] for key in sorted(lines)), key=_urgency)


def _urgency(entry: BacklogEntry) -> tuple[bool, bool, int, str]:
    return entry.background, entry.infeasible, entry.due_at, entry.batch_id


class _Line:
    """The batches of a model or of the deployment in order; those that run come first."""

    def __init__(self, model: str | None) -> None:
        self.members: set[str] = set()
        self._model = model
        self._running = 0
        self._next: BacklogEntry | None = None
        self._first: dict[str, list[str]] = defaultdict(list)

    def add(self, entry: BacklogEntry) -> None:
        if entry.batch_id in self.members:
            return
        if len(self._first[entry.project_id]) < NAMED:
            self._first[entry.project_id].append(entry.batch_id)
        self._running += entry.active
        self._next = self._next or (None if entry.active else entry)
        self.members.add(entry.batch_id)

    def behind(self, entry: BacklogEntry) -> BatchActivity:
        following = self._next or entry
        return BatchActivity(
            "waiting",
            behind=len(self.members),
            behind_ids=tuple(self._first[entry.project_id]),
            running=self._running,
            model=self._model,
            next_id=following.batch_id if following.project_id == entry.project_id else None,
            infeasible=entry.infeasible,
        )


def state(
    status: str,
    answered: int,
    held: str | None,
    in_queue: BatchActivity | None,
    *,
    paused: bool = False,
    idle: bool = False,
) -> BatchActivity | None:
    """Return what a batch does now; None if it has ended.

    `held` says why it does not move, `in_queue` is the last of `of_queue`. One is `idle` that is open, with all
    requests answered.
    """
    if status in TERMINAL:
        return None
    if paused:
        return BatchActivity("paused")
    if held is not None and (in_queue is None or in_queue.name == "waiting"):
        return BatchActivity("held", reason=held)
    if status == "validating":
        return BatchActivity("validating")
    if status != "in_progress":
        return BatchActivity("finishing")
    if idle:
        return BatchActivity("open")
    return in_queue or BatchActivity("running" if answered else "waiting")


def publish(context: AppContext, states: Mapping[str, BatchActivity]) -> None:
    with published.warned(log, "states not published"), context.redis.pipeline() as pipeline:
        published.replace(pipeline, STATES, {key: json.dumps(asdict(entry)) for key, entry in states.items()})
        pipeline.execute()


def read(context: AppContext, batch_ids: list[str]) -> dict[str, BatchActivity]:
    """Return the published states; none if Redis is away."""
    values = published.read(context, STATES, batch_ids, "states")
    states = {batch_id: json.loads(value) for batch_id, value in values.items()}
    return {
        batch_id: BatchActivity(**entry | {"behind_ids": tuple(entry["behind_ids"])})
        for batch_id, entry in states.items()
    }
