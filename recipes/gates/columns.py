"""Values of gates that name the item's columns: `{{answer}}`, or `{{reward_model.ground_truth}}` for a field within."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from batchyard.recipes import Item

PLACE = re.compile(r"\{\{ *([^{} ]+) *\}\}")


def filled(text: str, item: Item, quote: Callable[[str], str] = str) -> str:
    """Return the text with each `{{column}}` replaced by the item's value, which `quote` may escape.

    Raises:
        KeyError: the item has no such column.
    """
    return PLACE.sub(lambda place: quote(str(_value(item.columns, place[1]))), text)


def names(value: Any) -> list[str]:
    """Return the columns that a gate's value names: in a text, a list, or an object's `text`."""
    if isinstance(value, str):
        return PLACE.findall(value)
    inner = [value.get("text")] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return [name for element in inner for name in names(element)]


def _value(columns: Mapping[str, Any], path: str) -> Any:
    value: Any = columns
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise KeyError(f"the item has no column {path!r}; its columns: {', '.join(columns) or 'none'}")
        value = value[name]
    return value
