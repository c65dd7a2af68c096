"""Events of a tick: ended items, if the options ask, and items that need help, the first at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchyard.recipes import FlowRecipe, Item, Options
from jobs.items.stream import events_of, notifies, of_row
from jobs.running.live import LiveItems
from jobs.running.records import Change
from store import events
from store.formats.job_chunks import WAITING

HELP_SECONDS = 10.0
"""At most one event of items that are stuck, and one of items that wait, in so many seconds."""
MOST_LISTED = 100
"""Items in one such event."""


def of_project(recipe: FlowRecipe[Any], options: Options, ended: Sequence[Change]) -> list[dict[str, Any]]:
    """Return those events of items that webhooks can subscribe to, if the options ask for them."""
    if not notifies(options):
        return []
    items = (of_row(vars(item)) for item in ended)
    all_events = (dict(event) for item in items for event in events_of(recipe, options, item))
    return [event for event in all_events if event.get("type") in events.TYPES]


@dataclass
class Notices:
    """The items of a job that need a person or a CI, and that no event has named."""

    _stuck: list[dict[str, Any]] = field(default_factory=list)
    _waiting: dict[int, dict[str, Any]] = field(default_factory=dict)
    _sent_at: dict[str, float] = field(default_factory=dict)

    @classmethod
    def resumed(cls, items: LiveItems, now: float) -> Notices:
        """Return those of a rebuilt job: perhaps no event has named those that wait."""
        waiting = {position: _named(items.item(position)) for position in items.waiting}
        return cls(_waiting=waiting, _sent_at={"job.stuck": now, "job.gate_pending": now})

    def add(self, items: LiveItems) -> None:
        """Take in the items that are stuck, or wait, since the last commit."""
        new = items.uncommitted
        stuck = [_named(change) for change in new.ended if change.state == "stuck"]
        self._stuck = (self._stuck + stuck)[:MOST_LISTED]
        self._waiting |= {change.position: _named(change) for change in new.moved if change.state == WAITING}

    def due(self, items: LiveItems, stuck: int, now: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield type and data of the events that are due at `now` (Unix seconds). `stuck` counts all stuck items."""
        if self._stuck and self._may("job.stuck", now):
            yield "job.stuck", {"count": stuck, "items": self._stuck}
            self._stuck = []
        self._waiting = {position: item for position, item in self._waiting.items() if position in items.waiting}
        if self._waiting and self._may("job.gate_pending", now):
            gates = {position: wait.data["gate"] for position, wait in items.waiting.items()}
            gate = gates[next(iter(self._waiting))]
            new = {position: item for position, item in self._waiting.items() if gates[position] == gate}
            count = sum(other == gate for other in gates.values())
            yield "job.gate_pending", {"count": count, "gate": gate, "items": list(new.values())[:MOST_LISTED]}
            self._waiting = {position: item for position, item in self._waiting.items() if position not in new}

    def next_in(self, now: float) -> float | None:
        types = ["job.stuck"] * bool(self._stuck) + ["job.gate_pending"] * bool(self._waiting)
        return min((max(0.0, self._sent_at.get(name, 0.0) + HELP_SECONDS - now) for name in types), default=None)

    def _may(self, name: str, now: float) -> bool:
        if now - self._sent_at.get(name, 0.0) < HELP_SECONDS:
            return False
        self._sent_at[name] = now
        return True


def _named(item: Change | Item) -> dict[str, Any]:
    return {"number": item.number, "custom_id": item.custom_id}
