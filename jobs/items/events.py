"""Items that have ended, from their result rows, and their events: those of the recipe, or one that every item has."""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from batchyard import json_lines
from batchyard.recipes import EndedItem, Options, Recipe

log = logging.getLogger(__name__)

MOST_NOTIFIED = 1000
"""Items of a job with the option `notify`: each of them is an event of the project, sent to every webhook."""


def of_row(record: Mapping[str, Any]) -> EndedItem:
    """Return the item of a result row, without columns."""
    kept = {name: record[name] for name in ("number", "custom_id", "state", "started_at", "ended_at")}
    error = None if record["error"] is None else json_lines.loads(record["error"])
    return EndedItem(columns={}, result=json_lines.loads(record["result"]), error=error, **kept)


def events_of(recipe: Recipe[Any], options: Options, item: EndedItem) -> Sequence[Mapping[str, Any]]:
    """Return the events of an item, by default `item.<state>`."""
    if recipe.events is not None:
        try:
            return recipe.events(item, options)
        except Exception:
            log.exception("a recipe's events failed", extra={"recipe": recipe.name, "item": item.custom_id})
    ended_at = None if item.ended_at is None else datetime.fromtimestamp(item.ended_at, UTC).isoformat()
    event = {"type": f"item.{item.state}", "custom_id": item.custom_id, "number": item.number, "timestamp": ended_at}
    return [event if item.error is None else {**event, "error": item.error}]


def notifies(options: Options) -> bool:
    return bool(getattr(options, "notify", False))
