"""Events of items that need help: the first at once, and all later ones together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from batchyard.recipes import Wait
from jobs.running.notices import HELP_SECONDS, MOST_LISTED, Notices
from jobs.running.records import Change, Uncommitted


def change(position: int, state: str) -> Change:
    return Change(position, position, f"id-{position}", state, 1, 1, b"{}", None, 0.0, None)


def items(stuck: list[int] | None = None, waiting: dict[int, str] | None = None) -> Any:
    """Live items of which these are stuck, and these wait for a gate, since the last commit."""
    waits = {position: Wait("verdict", gate=gate) for position, gate in (waiting or {}).items()}
    moved = [change(position, "waiting_for_verdict") for position in waits]
    uncommitted = Uncommitted(ended=[change(position, "stuck") for position in stuck or []], moved=moved)
    return SimpleNamespace(uncommitted=uncommitted, waiting=waits)


def told(notices: Notices, live: Any, now: float, stuck: int = 0) -> list[tuple[str, int, list[int]]]:
    """Return type, count and the new items' numbers of each event that is due."""
    due = list(notices.due(live, stuck, now))
    return [(type_, data["count"], [item["number"] for item in data["items"]]) for type_, data in due]


def test_the_first_stuck_item_is_told_of_at_once_and_later_ones_together() -> None:
    notices = Notices()
    notices.add(items(stuck=[1]))
    assert told(notices, items(), 100.0, stuck=1) == [("job.stuck", 1, [1])]
    for position in (2, 3):
        notices.add(items(stuck=[position]))
        assert told(notices, items(), 101.0, stuck=3) == []
    assert notices.next_in(101.0) == HELP_SECONDS - 1
    assert told(notices, items(), 100.0 + HELP_SECONDS, stuck=3) == [("job.stuck", 3, [2, 3])]
    assert notices.next_in(200.0) is None


def test_an_item_that_has_its_verdict_by_then_is_not_told_of() -> None:
    notices = Notices()
    notices.add(items(waiting={1: "house", 2: "house"}))
    assert told(notices, items(waiting={2: "house", 5: "house"}), 100.0) == [("job.gate_pending", 2, [2])]
    notices.add(items(waiting={3: "house"}))
    assert told(notices, items(), 200.0) == []
    assert notices.next_in(200.0) is None


def test_each_gate_has_an_event_of_its_own() -> None:
    notices, live = Notices(), items(waiting={1: "house", 2: "legal", 3: "house"})
    notices.add(live)
    ((_, first),) = notices.due(live, 0, 100.0)
    ((_, second),) = notices.due(live, 0, 100.0 + HELP_SECONDS)
    assert (first["gate"], first["count"], [item["number"] for item in first["items"]]) == ("house", 2, [1, 3])
    assert (second["gate"], second["count"], [item["number"] for item in second["items"]]) == ("legal", 1, [2])


def test_an_event_names_a_bounded_number_of_items_and_counts_all() -> None:
    notices = Notices()
    notices.add(items(stuck=list(range(150))))
    ((_, count, numbers),) = told(notices, items(), 100.0, stuck=150)
    assert (count, len(numbers)) == (150, MOST_LISTED)
