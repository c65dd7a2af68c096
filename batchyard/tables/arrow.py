"""Cells of Arrow's columns as Python values, each by itself where one of them has none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from batchyard.tables.cells import Unreadable

UNREADABLE = (ValueError, TypeError, OverflowError, NotImplementedError, LookupError)
"""What a cell without a value of Python raises: Arrow's errors, and that of a time zone that this machine lacks."""


class ArrowColumn(Protocol):
    """A column or an array of Arrow."""

    def to_pylist(self) -> list[Any]: ...

    def __iter__(self) -> Any: ...


def values(column: ArrowColumn) -> list[Any]:
    """Return the cells of a column. One that is no value of Python, such as text that is not UTF-8, is Unreadable."""
    try:
        return column.to_pylist()
    except UNREADABLE:
        return list(_one_by_one(column))


def _one_by_one(column: Iterable[Any]) -> Iterable[Any]:
    for cell in column:
        try:
            yield cell.as_py()
        except UNREADABLE as error:
            yield Unreadable(f"cannot be read: {error}")
