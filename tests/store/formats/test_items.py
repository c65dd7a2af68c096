"""An items file gives any run of items by position, whatever row groups they were written in."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.errors import ArtifactMissing, BatchyardError
from store.artifacts import Artifacts
from store.formats import items, parquet
from store.formats.items import StoredItem


def write(artifacts: Artifacts, rows: list[dict[str, Any]]) -> str:
    """Store these rows as items that begin in reverse order of the input."""
    numbers = reversed(range(len(rows)))
    sha256, total = items.write(artifacts, ((n, f"item-{n}", orjson.dumps(rows[n])) for n in numbers))
    assert total == len(rows)
    return sha256


def group_sizes(artifacts: Artifacts, sha256: str) -> list[int]:
    with parquet.opened(artifacts, sha256, "items file") as file:
        return [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]


@given(st.integers(0, 30), st.integers(1, 9), st.integers(-1, 35), st.integers(0, 40))
def test_any_run_of_items_is_read_by_position(
    artifacts: Artifacts, total: int, group_items: int, first: int, count: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "GROUP_ITEMS", group_items)
        sha256 = write(artifacts, [{"text": "ü" * number} for number in range(total)])
    reader = items.Reader(artifacts, sha256)
    assert reader.total == total
    everything = [
        StoredItem(
            position, total - 1 - position, f"item-{total - 1 - position}", {"text": "ü" * (total - 1 - position)}
        )
        for position in range(total)
    ]
    first = max(first, 0)
    assert reader.read(first, count) == everything[first : first + count]
    assert reader.read(0, total) == list(reader) == everything
    assert reader.numbers().tolist() == [row.number for row in everything]


def test_a_row_group_holds_few_items_if_they_are_long(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "GROUP_BYTES", 1000)
    sha256 = write(artifacts, [{"text": "x" * 300}] * 3 + [{"text": "x" * 5000}] + [{"text": "x" * 300}] * 4)
    assert group_sizes(artifacts, sha256) == [3, 1, 1, 3]


def test_a_row_group_has_at_most_4096_items(artifacts: Artifacts) -> None:
    assert group_sizes(artifacts, write(artifacts, [{}] * 10_000)) == [4096, 4096, 1808]


def test_items_that_follow_each_other_are_read_from_the_store_once(artifacts: Artifacts) -> None:
    sha256 = write(artifacts, [{"text": "x"}] * 100)
    reader = items.Reader(artifacts, sha256)
    assert len(reader.read(0, 1)) == 1
    artifacts.collect(sha256[:2], sha256, 0.0)
    assert [row.position for first in range(1, 100) for row in reader.read(first, 1)] == list(range(1, 100))


def test_a_damaged_items_file_is_an_error_that_names_it(artifacts: Artifacts) -> None:
    sha256 = artifacts.put(b"no Parquet at all")
    with pytest.raises(BatchyardError, match=f"items file {sha256} .* cannot be read"):
        items.Reader(artifacts, sha256)


def test_a_missing_items_file_is_an_error_of_the_store(artifacts: Artifacts) -> None:
    with pytest.raises(ArtifactMissing):
        items.Reader(artifacts, "0" * 64)
