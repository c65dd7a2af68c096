"""Rows in a temporary SQLite database, to sort or look up without growing memory; and requests sorted so."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchyard.errors import UnavailableError

Row = tuple[Any, ...]
INSERTED_AT_ONCE = 512
CACHE_KIB = 16 * 1024
COLUMNS = ("queue INTEGER", "order_key", "fingerprint", "line INTEGER", "tokens INTEGER", "custom_id", "body", "answer")
"""A row: one request. `queue` numbers the lists that are sorted apart; see PlanWriter.add for the others."""


class Spill:
    """A table `rows` on the local disk, which is gone when it is closed. Not for several threads."""

    def __init__(self, columns: Sequence[str], *, replace: bool = False) -> None:
        """`columns`: as in CREATE TABLE. `replace`: a row takes the place of an earlier one with the same key."""
        self._folder = tempfile.TemporaryDirectory(prefix="batchyard-rows-")
        self._pending: list[Row] = []
        self._database = sqlite3.connect(Path(self._folder.name) / "rows.db", isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE", f"cache_size=-{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.execute(f"CREATE TABLE rows ({', '.join(columns)})")
        self._database.execute("BEGIN")
        verb = "REPLACE" if replace else "INSERT"
        self._insertion = f"{verb} INTO rows VALUES ({', '.join('?' * len(columns))})"

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def add(self, row: Row) -> None:
        """Add a row. Raises UnavailableError if the disk is full."""
        self._pending.append(row)
        if len(self._pending) >= INSERTED_AT_ONCE:
            self._insert()

    def select(self, what: str, tail: str = "", values: Sequence[Any] = ()) -> Iterator[Row]:
        """Yield `SELECT what FROM rows tail`. Raises UnavailableError if the disk is full."""
        self._insert()
        with _disk():
            yield from self._database.execute(f"SELECT {what} FROM rows {tail}", values)

    def close(self) -> None:
        self._database.close()
        self._folder.cleanup()

    def _insert(self) -> None:
        with _disk():
            self._database.executemany(self._insertion, self._pending)
        self._pending.clear()


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise UnavailableError(f"{tempfile.gettempdir()}: no room for the rows to sort: {error}") from error


@dataclass(frozen=True)
class SortedQueue:
    """Totals of one queue. Requests with one fingerprint run once; `tokens` is the most of all answers."""

    requests: int
    runs: int
    tokens: int


class RequestSorter(Spill):
    """Sorts the requests of each queue by order key, fingerprint and line."""

    def __init__(self) -> None:
        super().__init__(COLUMNS)

    def queues(self) -> dict[int, SortedQueue]:
        """Return each queue's totals, by number."""
        runs = "COUNT(*) - COUNT(fingerprint) + COUNT(DISTINCT fingerprint)"
        rows = self.select(f"queue, COUNT(*), {runs}, SUM(tokens)", "GROUP BY queue")
        return {queue: SortedQueue(*totals) for queue, *totals in rows}

    def sorted(self, queue: int) -> Iterator[Row]:
        return self.select("*", "WHERE queue = ? ORDER BY order_key, fingerprint, line", (queue,))
