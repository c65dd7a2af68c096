"""Cells of tables as Python values, as JSON values and as texts of prompts: the same from every kind of table.

A text stays as it is. All else becomes JSON: `true`, `3`, `["a", 1.5]`. A whole number has no decimal point, also where
pandas made it a float beside an empty cell. Dates are ISO 8601, a Decimal keeps its digits.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

EXACT = 1e15
"""Floats below it print all the digits of a whole number."""
HALF = "has half of a character (a lone surrogate), which is no text"
_BINARY = "holds binary data, which is no text"
_IMAGE = "holds an image, which is no text"
_PICTURES = (_BINARY, _IMAGE)
_INFINITE = "is infinite, which is no number of JSON"
_DEEP = "is nested too deep"
_UNREADABLE = (ValueError, TypeError, OverflowError, NotImplementedError, LookupError)
"""What a cell of Arrow without a value of Python raises: Arrow's errors, and that of an unknown time zone."""


class CellError(ValueError):
    """A cell that no prompt can have. `str()` names the column and says why."""

    def __init__(self, reason: str, code: str = "invalid_value", column: str | None = None) -> None:
        super().__init__(reason if column is None else f"column {column} {reason}")
        self.reason = reason
        self.code = code  # `empty_value`, `missing_column` or `invalid_value`
        self.column = column


@dataclass(frozen=True)
class Unreadable:
    """Stands for a cell that is no value of Python. `reason`: what follows the column's name."""

    reason: str


def of_arrow(column: Any) -> list[Any]:
    """Return the cells of a column. One that is no value of Python, such as text that is not UTF-8, is Unreadable."""
    cells: list[Any] = []
    try:
        cells = column.to_pylist()
    except _UNREADABLE:
        for cell in column:
            try:
                cells.append(cell.as_py())
            except _UNREADABLE as error:
                cells.append(Unreadable(f"cannot be read: {error}"))
    return cells


def text(value: Any, column: str) -> str:
    """Return a cell as text of a prompt. Raises CellError if empty, or neither text nor JSON."""
    try:
        if isinstance(value, str):
            content = str.__str__(value)
        else:
            value = plain(value)
            is_text = isinstance(value, str | None)
            content = value or "" if is_text else json.dumps(_whole(value), ensure_ascii=False)
        if not content:
            raise CellError("is empty", "empty_value")
        check(content)
    except CellError as error:
        remedy = f"; in a template of a chat, {{{column}:image}} sends an image" if error.reason in _PICTURES else ""
        raise CellError(f"{error.reason}{remedy}", error.code, column) from None
    except RecursionError:
        raise CellError(_DEEP, column=column) from None
    except ValueError:  # Python writes no integer of more than 4,300 digits
        raise CellError("is a number of thousands of digits", column=column) from None
    return content


def is_empty(value: Any) -> bool:
    """True for a cell without a value, in every door: None, NaN, NA, NaT, or no text."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # those of pandas, which need not be installed
        return True
    if isinstance(value, str):
        return not value
    return value.is_nan() if isinstance(value, Decimal) else isinstance(value, float) and math.isnan(value)


def optional(value: Any, column: str) -> str | None:
    """Return a cell as `text` does, None if it is empty. Raises CellError."""
    try:
        return text(value, column)
    except CellError as error:
        if error.code == "empty_value":
            return None
        raise


def json_value(value: Any, column: str) -> Any:
    """Return a cell as `plain` does. Raises CellError, which names the column."""
    try:
        return plain(value)
    except CellError as error:
        raise CellError(error.reason, error.code, column) from None
    except RecursionError:
        raise CellError(_DEEP, column=column) from None


def plain(value: Any) -> Any:
    """Return a cell as a JSON value; None, NaN, NA, NaT become None, decimals and dates texts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isinf(value):
            raise CellError(_INFINITE)
        return None if math.isnan(value) else float(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise CellError(_BINARY)
    if isinstance(value, Unreadable):
        raise CellError(value.reason)
    if isinstance(value, Mapping):
        return {str(name): plain(child) for name, child in value.items()}
    if is_empty(value):
        return None
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(timedelta(value.days, value.seconds, value.microseconds))  # pandas writes its own otherwise
    if isinstance(value, Decimal):
        if value.is_infinite():
            raise CellError(_INFINITE)
        return None if value.is_nan() else str(value)
    if isinstance(value, UUID):
        return str(value)
    if str(getattr(value, "dtype", "")) in ("datetime64[ns]", "timedelta64[ns]"):
        value = value.astype(f"{value.dtype.kind}8[us]")  # NumPy's lists have nanoseconds as integers
    for method in ("tolist", "to_list", "as_py"):  # NumPy's values and arrays, columns of polars, values of pyarrow
        if hasattr(value, method):
            return plain(getattr(value, method)())
    if isinstance(value, Sequence):
        return [plain(child) for child in value]
    raise CellError(
        _IMAGE
        if type(value).__module__.startswith("PIL.")
        else f"holds a {type(value).__name__}, which is neither text nor JSON; convert it first"
    )


def check(text: str) -> None:
    """Raise CellError for a text with half of a surrogate pair, which is in no encoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CellError(HALF) from None


def _whole(value: Any) -> Any:
    """Return a JSON value whose floats that are whole are integers."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < EXACT else value
    if isinstance(value, list):
        return [_whole(child) for child in value]
    if isinstance(value, dict):
        return {name: _whole(child) for name, child in value.items()}
    return value
