"""An item that has ended, as its result row keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass
class FinishedItem:
    """See batchyard.recipes.EndedItem."""

    number: int
    custom_id: str
    columns: Mapping[str, Any]
    state: str
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None
    started_at: float | None
    ended_at: float | None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> FinishedItem:
        """Return the item of a result row, whose `result` and `error` are JSON. It has no columns."""
        kept = {name: record[name] for name in ("number", "custom_id", "state", "started_at", "ended_at")}
        error = record["error"]
        return cls(
            columns={},
            result=orjson.loads(record["result"]),
            error=None if error is None else orjson.loads(error),
            **kept,
        )
