"""Requests are sorted queue by queue, and those with one fingerprint run once."""

from __future__ import annotations

from typing import Any

import pytest

from store.formats.spill import RequestSorter, SortedQueue


@pytest.fixture
def sorter() -> Any:
    sorter = RequestSorter()
    yield sorter
    sorter.close()


def row(line: int, key: bytes = b"k", fingerprint: bytes | None = None, queue: int = 0, tokens: int = 1) -> Any:
    return (queue, key, fingerprint, line, tokens, f"r{line}", b"{}", None)


def lines(sorter: RequestSorter, queue: int = 0) -> list[int]:
    return [row[3] for row in sorter.sorted(queue)]


def test_rows_come_by_order_key_then_fingerprint_then_line(sorter: RequestSorter) -> None:
    for request in (row(4, b"b", b"x"), row(3, b"a", b"z"), row(2, b"b", b"x"), row(1, b"a", b"y"), row(5, b"a", b"z")):
        sorter.add(request)
    assert lines(sorter) == [1, 3, 5, 2, 4]


def test_queues_are_sorted_and_counted_apart(sorter: RequestSorter) -> None:
    for request in (row(2), row(1, queue=1, tokens=5), row(1, tokens=3)):
        sorter.add(request)
    assert sorter.queues() == {0: SortedQueue(2, 2, 4), 1: SortedQueue(1, 1, 5)}
    assert (lines(sorter), lines(sorter, 1), lines(sorter, 2)) == ([1, 2], [1], [])


def test_requests_with_one_fingerprint_run_once_and_those_without_each(sorter: RequestSorter) -> None:
    for number, fingerprint in enumerate((b"x", b"x", b"y", None, None)):
        sorter.add(row(number, fingerprint=fingerprint))
    assert sorter.queues()[0] == SortedQueue(requests=5, runs=4, tokens=5)


def test_no_rows_make_no_queue(sorter: RequestSorter) -> None:
    assert sorter.queues() == {}
