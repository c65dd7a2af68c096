"""External sort of a batch's requests, in a temporary SQLite database: memory does not grow with the batch."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = ("queue INTEGER", "order_key", "fingerprint", "line INTEGER", "tokens INTEGER", "custom_id", "body", "answer")
"""A row: one request. `queue` numbers the lists that are sorted apart; see PlanWriter.add for the others."""
SORTED_AT_ONCE = 512
CACHE_KIB = 16 * 1024

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Queue:
    """Totals of one queue.

    Attributes:
        requests: how many there are.
        runs: how many of them run: requests with one fingerprint run once.
        tokens: most tokens that all of them may be answered with.
    """

    requests: int
    runs: int
    tokens: int


class RequestSorter:
    """Sorts the requests of each queue by order key, fingerprint and line."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="batchyard-plan-")
        self._rows: list[Row] = []
        self._database = sqlite3.connect(Path(self._folder.name) / "requests.db", isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE", f"cache_size=-{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.execute(f"CREATE TABLE requests ({', '.join(COLUMNS)})")
        self._database.execute("BEGIN")

    def add(self, row: Row) -> None:
        """Add a row of COLUMNS."""
        self._rows.append(row)
        if len(self._rows) >= SORTED_AT_ONCE:
            self._insert()

    def _insert(self) -> None:
        places = ", ".join("?" * len(COLUMNS))
        self._database.executemany(f"INSERT INTO requests VALUES ({places})", self._rows)
        self._rows.clear()

    def queues(self) -> dict[int, Queue]:
        """Return each queue's totals, by number."""
        self._insert()
        runs = "COUNT(*) - COUNT(fingerprint) + COUNT(DISTINCT fingerprint)"
        rows = self._database.execute(f"SELECT queue, COUNT(*), {runs}, SUM(tokens) FROM requests GROUP BY queue")
        return {queue: Queue(*totals) for queue, *totals in rows}

    def sorted(self, queue: int) -> Iterator[Row]:
        """Yield the rows of one queue, sorted. Call `queues` first."""
        return self._database.execute(
            "SELECT * FROM requests WHERE queue = ? ORDER BY order_key, fingerprint, line", (queue,)
        )

    def close(self) -> None:
        """Delete the database."""
        self._database.close()
        self._folder.cleanup()
