"""What clients are told of each item that has ended: the events of its recipe, or one of ours."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from batchyard.recipes import Options, Recipe
from store import events
from tasks.jobs.finish import EndedItem
from tasks.jobs.live import Ended

log = logging.getLogger(__name__)

MOST_NOTIFIED = 1000
"""Items of a job with the option `notify`: each of them is an event of the project, sent to every webhook."""


def events_of(recipe: Recipe[Any], options: Options, item: EndedItem) -> Sequence[Mapping[str, Any]]:
    """Return the events of an item. One whose recipe has none, or raises, has `item.<state>`."""
    if recipe.events is not None:
        try:
            return recipe.events(item, options)
        except Exception:
            log.exception("a recipe's events failed", extra={"recipe": recipe.name, "item": item.custom_id})
    ended_at = None if item.ended_at is None else datetime.fromtimestamp(item.ended_at, UTC).isoformat()
    event = {"type": f"item.{item.state}", "custom_id": item.custom_id, "number": item.number, "timestamp": ended_at}
    return [event if item.error is None else {**event, "error": item.error}]


def notifies(options: Options) -> bool:
    """True if each item that ends is to be an event of the project."""
    return bool(getattr(options, "notify", False))


def of_project(recipe: Recipe[Any], options: Options, ended: Sequence[Ended]) -> list[dict[str, Any]]:
    """Return those events of items that webhooks can subscribe to, if the options ask for them."""
    if not notifies(options):
        return []
    items = (EndedItem.of(asdict(item)) for item in ended)
    told = (dict(event) for item in items for event in events_of(recipe, options, item))
    return [event for event in told if event.get("type") in events.TYPES]
