"""External sort of a batch's requests: memory does not grow with the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from store.formats.spill import Row, Spill

COLUMNS = ("queue INTEGER", "order_key", "fingerprint", "line INTEGER", "tokens INTEGER", "custom_id", "body", "answer")
"""A row: one request. `queue` numbers the lists that are sorted apart; see PlanWriter.add for the others."""


@dataclass(frozen=True)
class SortedQueue:
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
        self._rows = Spill(COLUMNS)

    def add(self, row: Row) -> None:
        """Add a row of COLUMNS. Raises UnavailableError if the disk is full."""
        self._rows.add(row)

    def queues(self) -> dict[int, SortedQueue]:
        """Return each queue's totals, by number."""
        runs = "COUNT(*) - COUNT(fingerprint) + COUNT(DISTINCT fingerprint)"
        rows = self._rows.select(f"queue, COUNT(*), {runs}, SUM(tokens)", "GROUP BY queue")
        return {queue: SortedQueue(*totals) for queue, *totals in rows}

    def sorted(self, queue: int) -> Iterator[Row]:
        """Yield the rows of one queue, sorted."""
        return self._rows.select("*", "WHERE queue = ? ORDER BY order_key, fingerprint, line", (queue,))

    def close(self) -> None:
        """Delete the rows."""
        self._rows.close()
