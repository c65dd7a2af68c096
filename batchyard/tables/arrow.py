"""Cells of Arrow's columns as Python values, each by itself where one of them has none."""

from typing import Any

from batchyard.tables.cells import Unreadable

UNREADABLE = (ValueError, TypeError, OverflowError, NotImplementedError, LookupError)
"""What a cell without a value of Python raises: Arrow's errors, and that of a time zone that this machine lacks."""


def values(column: Any) -> list[Any]:
    """Return the cells of a column. One that is no value of Python, such as text that is not UTF-8, is Unreadable."""
    cells: list[Any] = []
    try:
        cells = column.to_pylist()
    except UNREADABLE:
        for cell in column:
            try:
                cells.append(cell.as_py())
            except UNREADABLE as error:
                cells.append(Unreadable(f"cannot be read: {error}"))
    return cells
