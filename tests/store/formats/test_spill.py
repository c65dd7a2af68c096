"""Rows on the local disk come back sorted or looked up, and the last one of a key counts."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from batchyard.errors import UnavailableError
from store.formats.spill import INSERTED_AT_ONCE, Spill

ROWS = [(number % 7, number) for number in range(3 * INSERTED_AT_ONCE + 1)]


def test_rows_come_back_in_the_order_that_the_reader_wants() -> None:
    with Spill(["key INTEGER", "number INTEGER"]) as spill:
        for row in random.Random(1).sample(ROWS, len(ROWS)):
            spill.add(row)
        assert list(spill.select("key, number", "ORDER BY key, number")) == sorted(ROWS)
        spill.add((3, -1))
        assert next(spill.select("number", "WHERE key = ? ORDER BY number", (3,))) == (-1,)


def test_the_last_row_of_a_key_counts_where_rows_replace_one_another() -> None:
    with Spill(["line INTEGER PRIMARY KEY", "answer"], replace=True) as spill:
        for row in [(1, "a"), (2, "b"), (1, "c")]:
            spill.add(row)
        assert list(spill.select("*", "ORDER BY line")) == [(1, "c"), (2, "b")]


def test_nothing_is_left_on_the_disk_and_a_full_one_is_no_fault_of_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Spill(["text"]) as spill:
        spill._database.execute("PRAGMA max_page_count = 8")
        with pytest.raises(UnavailableError, match="no room for the rows to sort: database or disk is full"):
            for _ in range(10 * INSERTED_AT_ONCE):
                spill.add(("x" * 1000,))
    assert not list(tmp_path.iterdir())
    with pytest.raises(sqlite3.ProgrammingError):
        list(spill.select("*"))
