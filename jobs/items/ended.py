"""Items that have ended, from their result rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchyard import json_lines
from batchyard.recipes import EndedItem


def of_row(record: Mapping[str, Any]) -> EndedItem:
    """Return the item of a result row, whose `result` and `error` are JSON. It has no columns."""
    kept = {name: record[name] for name in ("number", "custom_id", "state", "started_at", "ended_at")}
    error = record["error"]
    return EndedItem(
        columns={},
        result=json_lines.loads(record["result"]),
        error=None if error is None else json_lines.loads(error),
        **kept,
    )
