"""What clients are told of an item that has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from batchyard.recipes import Ask, EndedItem, Flow, Item, Options, Result, recipe
from jobs.items.stream import events_of, notifies, of_row


class Notified(Options):
    notify: bool = False


@recipe("plain", Options, stages=("ask",))
def plain(item: Item, options: Options) -> Flow:
    """Answer once."""
    yield [Ask("ask", "Why?", model="echo")]
    return Result(text="so")


def of_item(item: EndedItem, options: Options) -> Sequence[Mapping[str, Any]]:
    if item.state == "failed":
        raise ValueError("nothing is known of it")
    return [{"type": "debate.completed", "text": item.result["text"]}]


ENDED = of_row(
    {
        "number": 7,
        "custom_id": "id-7",
        "state": "completed",
        "result": b'{"text": "so"}',
        "error": None,
        "started_at": 0.0,
        "ended_at": 60.0,
    }
)
FAILED = replace(ENDED, state="failed", error={"code": "no_answer"})


def test_an_item_has_the_events_of_its_recipe() -> None:
    told = events_of(replace(plain, events=of_item), Options(), ENDED)
    assert told == [{"type": "debate.completed", "text": "so"}]


def test_an_item_of_a_recipe_without_events_has_one_of_its_state() -> None:
    assert events_of(plain, Options(), ENDED) == [
        {"type": "item.completed", "custom_id": "id-7", "number": 7, "timestamp": "1970-01-01T00:01:00+00:00"}
    ]
    (event,) = events_of(plain, Options(), FAILED)
    assert (event["type"], event["error"]) == ("item.failed", {"code": "no_answer"})


def test_events_that_raise_cost_no_item_its_event() -> None:
    (event,) = events_of(replace(plain, events=of_item), Options(), FAILED)
    assert event["type"] == "item.failed"


def test_only_options_that_say_so_notify() -> None:
    assert [notifies(options) for options in (Options(), Notified(), Notified(notify=True))] == [False, False, True]
