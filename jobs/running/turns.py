"""The outlook of a job: the requests still to come, judged by earlier items.

An item at turn t makes the requests of later turns as far as items go: turn u follows with the share of items that have
gone on from each turn before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class TurnCounts:
    """Items that began a turn, those whose turn is complete, and the requests of the turn by model."""

    begun: int = 0
    complete: int = 0
    requests: Counter[str] = field(default_factory=Counter)


class Turns:
    """Counts of all items of a job, by turn from 1."""

    def __init__(self, counts: Sequence[TurnCounts] = ()) -> None:
        self._counts = list(counts)

    def __getitem__(self, turn: int) -> TurnCounts:
        while len(self._counts) < turn:
            self._counts.append(TurnCounts())
        return self._counts[turn - 1]

    def later(self, turn: int) -> Counter[str] | None:
        """Return mean later requests by model after a turn (0: not begun); None before any item has shown it."""
        if not self._counts or not all(counts.complete for counts in self._counts[max(turn, 1) - 1 :]):
            return None  # of the last one nobody has shown whether a turn follows
        means: Counter[str] = Counter()
        for counts, share in self._after(turn):
            for model, requests in counts.requests.items():
                means[model] += share * requests / max(1, counts.begun)  # type: ignore[assignment]
        return means

    def left(self, turn: int) -> float:
        """Return the mean number of turns after this one; 0 is before the first."""
        return sum(share for _, share in self._after(turn))

    def _after(self, turn: int) -> Iterator[tuple[TurnCounts, float]]:
        """Yield each later turn with the share of items that go on to it."""
        share = 1.0
        for before, counts in enumerate(self._counts[turn:], start=turn):
            if before:
                share *= min(1.0, counts.begun / max(1, self[before].complete))
            yield counts, share

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"begun": counts.begun, "complete": counts.complete, "requests": dict(counts.requests)}
            for counts in self._counts
        ]

    @classmethod
    def from_json(cls, values: Iterable[Mapping[str, Any]]) -> Turns:
        return cls([TurnCounts(value["begun"], value["complete"], Counter(value["requests"])) for value in values])


def outlook(turns: Turns, live: Sequence[tuple[int, int]], pending: Mapping[str, int], unbegun: int) -> dict[str, Any]:
    """Return what a job's record keeps for its forecast, as JSON: see `requests_ahead` and Turns.

    `chains` are (mean number of turns left, items) of the live items, `unbegun` the same of those that have not begun.
    """
    return {
        "requests": requests_ahead(turns, live, pending, unbegun),
        "chains": [(1 + turns.left(turn), number) for turn, number in live],
        "unbegun": (turns.left(0), unbegun) if unbegun else None,
        "turns": turns.to_json(),
    }


def requests_ahead(
    turns: Turns, live: Iterable[tuple[int, int]], pending: Mapping[str, int], unbegun: int
) -> dict[str, float] | None:
    """Return the requests, by model, that a job will still issue; None if nobody can know yet.

    `live` counts items by the turn that they wait in, `pending` requests that stand in no segment yet.
    """
    ahead: Counter[str] = Counter(pending)
    for turn, number in [(0, unbegun), *live]:
        if number:
            later = turns.later(turn)
            if later is None:
                return None
            for model, requests in later.items():
                ahead[model] += number * requests
    return dict(ahead)
