"""Usage as if batches had been answered: rows of millions of tokens, at whole prices."""

from __future__ import annotations

import time
from typing import Any

from store.accounting.months import day_of
from store.database import Database
from store.records import DailyUsage, new_id

MILLION = 1_000_000


def spend(
    database: Database,
    project_id: str,
    euros: int | None,
    *,
    at: float | None = None,
    currency: str = "EUR",
    model: str = "echo",
    **columns: Any,
) -> str:
    """Record a batch that cost so much: for a million input tokens. None: its model had no tariff. Return its id."""
    batch_id = columns.pop("batch_id", None) or new_id("batch_")
    prices = {"input_price": (euros or 0) * MILLION, "cached_price": 0, "output_price": 0, "hour_price": 0}
    amounts = dict.fromkeys(("failed", "shared_requests", "cached_tokens", "output_tokens", "milliseconds"), 0)
    values: dict[str, Any] = {
        **amounts,
        **({} if euros is None else {"currency": currency, **prices}),
        **{"requests": 10, "bytes": 1000, "input_tokens": MILLION},
        **columns,
    }
    day = day_of(time.time() if at is None else at)
    with database.write() as session:
        session.add(DailyUsage(batch_id=batch_id, project_id=project_id, model=model, day=day, **values))
    return batch_id
