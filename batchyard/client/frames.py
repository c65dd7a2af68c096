"""Kinds of tables: cells out of each as Python values, answers back as the same kind.

Libraries are asked for only if the caller has imported them already, so none of them is needed.
"""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from batchyard.errors import ConfigurationError
from batchyard.tables.cells import of_arrow

Kind = Literal["string", "integer", "number", "boolean", "vector"]


class Column(NamedTuple):
    """Values of a new column, None where missing, and their type; None: as the values show.

    Vectors are arrays of NumPy with one length.
    """

    values: list[Any]
    kind: Kind | None = "string"


class Frame(ABC):
    """A table of the caller's."""

    def __init__(self, data: Any, columns: Iterable[str]) -> None:
        self._data = data
        self.columns = list(columns)

    def __len__(self) -> int:
        return len(self._data)

    @abstractmethod
    def cells(self, column: str) -> Sequence[Any]:
        """Return the cells of a column; None where there is no value."""

    def column(self, name: str, column: Column) -> Any:
        """Return a new column of the caller's kind, to be assigned to the table."""
        return self.table({name: column})[name]

    @abstractmethod
    def table(self, columns: Mapping[str, Column]) -> Any:
        """Return a new table of the caller's kind, with as many rows."""

    def apart(self, columns: Mapping[str, Column]) -> Any:
        """Return a new table of the caller's kind, with rows of its own."""
        return self.table(columns)

    def taken(self, rows: Sequence[int]) -> Any:
        """Return a table with these rows."""
        return self._data[rows]


def of(data: Any) -> Frame:
    """Return a table as a Frame. Raises ConfigurationError if it is none that is known."""
    if _is(data, "pandas", "DataFrame"):
        return _Pandas(data)
    if _is(data, "polars", "DataFrame"):
        return _Polars(data, data.columns)
    if _is(data, "datasets", "Dataset"):
        return _Dataset(data.with_format(None), data.column_names)
    if isinstance(data, Sequence) and all(isinstance(row, Mapping) for row in data):
        return _Dicts(data, dict.fromkeys(name for row in data for name in row))
    columns = (("pandas", "Series"), ("polars", "Series"), ("pyarrow", "ChunkedArray"))
    if hasattr(data, "__arrow_c_stream__") and not any(_is(data, library, name) for library, name in columns):
        import pyarrow as pa

        table = pa.table(data)
        return _Arrow(table, table.column_names)
    remedies = {
        "LazyFrame": "collect() it first",
        "DatasetDict": "name one of its splits",
        "Series": "make it a column of a data frame, with to_frame()",
    }
    remedy = remedies.get(
        type(data).__name__,
        "pass a data frame of pandas or polars, an Arrow table, a dataset of Hugging Face or a list of dicts",
    )
    raise ConfigurationError(f"{type(data).__name__} is no table that map can read; {remedy}")


def _is(data: Any, library: str, name: str) -> bool:
    module = sys.modules.get(library)
    return module is not None and isinstance(data, getattr(module, name))


def _without_nan(cells: Sequence[Any]) -> Sequence[Any]:
    return [None if _is_nan(cell) else cell for cell in cells]


def _is_nan(cell: Any) -> bool:
    return cell.is_nan() if isinstance(cell, Decimal) else isinstance(cell, float) and cell != cell


def _arrow(columns: Mapping[str, Column]) -> Any:
    import pyarrow as pa

    types = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), None: None}

    def array(column: Column) -> Any:
        if column.kind == "vector":
            return vectors(column.values)
        try:
            return pa.array(column.values, types[column.kind])
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            # Values of different shapes, which no type of Arrow has.
            return pa.array([None if value is None else json.dumps(value) for value in column.values], pa.string())

    return pa.table({name: array(column) for name, column in columns.items()})


def vectors(values: Sequence[Any]) -> Any:
    """Return arrays of NumPy as an Arrow array of lists with their size; null where there is none."""
    import numpy as np
    import pyarrow as pa

    first = next((vector for vector in values if vector is not None), None)
    if first is None:
        return pa.nulls(len(values), pa.list_(pa.float32()))
    missing = np.zeros_like(first)
    numbers = np.concatenate([missing if vector is None else vector for vector in values])
    mask = pa.array([vector is None for vector in values])
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), len(first), mask=mask)


class _Pandas(Frame):
    def __init__(self, frame: Any) -> None:
        self._labels = {str(label): label for label in frame.columns}
        super().__init__(frame, self._labels)
        if len(self.columns) < len(frame.columns):
            twice = sorted({str(label) for label in frame.columns[frame.columns.duplicated()]})
            raise ConfigurationError(f"the table has columns of the same name: {', '.join(twice)}; rename them")

    def cells(self, column: str) -> Sequence[Any]:
        series = self._data[self._labels[column]]
        return [None if empty else cell for cell, empty in zip(series.tolist(), series.isna().tolist(), strict=True)]

    def table(self, columns: Mapping[str, Column]) -> Any:
        table = self.apart(columns)
        table.index = self._data.index
        return table

    def apart(self, columns: Mapping[str, Column]) -> Any:
        import pandas as pd
        import pyarrow as pa

        # NumPy has no missing integer and no missing truth value, pandas has.
        types = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
        return _arrow(columns).to_pandas(types_mapper=types.get)

    def taken(self, rows: Sequence[int]) -> Any:
        return self._data.iloc[rows]


class _Polars(Frame):
    def cells(self, column: str) -> Sequence[Any]:
        return _without_nan(self._data.get_column(column).to_list())

    def table(self, columns: Mapping[str, Column]) -> Any:
        return sys.modules["polars"].from_arrow(_arrow(columns))


class _Arrow(Frame):
    """A table of pyarrow, or of any library with Arrow's PyCapsule interface; new ones are pyarrow's."""

    def cells(self, column: str) -> Sequence[Any]:
        return _without_nan(of_arrow(self._data.column(column)))

    def table(self, columns: Mapping[str, Column]) -> Any:
        return _arrow(columns)

    def taken(self, rows: Sequence[int]) -> Any:
        import numpy as np
        import pyarrow as pa

        # Not `take`: it fails beyond 2 GiB of text.
        return self._data.filter(pa.array(np.isin(np.arange(len(self)), rows)))


class _Dataset(Frame):
    """A dataset of Hugging Face, whose `add_column` takes a list."""

    def cells(self, column: str) -> Sequence[Any]:
        try:
            return _without_nan(list(self._data[column]))
        except Exception as error:  # a decoder of audio or images may raise anything
            raise ConfigurationError(f"column {column} cannot be decoded: {error}") from error

    def column(self, name: str, column: Column) -> Any:
        return column.values

    def table(self, columns: Mapping[str, Column]) -> Any:
        return sys.modules["datasets"].Dataset(_arrow(columns))

    def taken(self, rows: Sequence[int]) -> Any:
        return self._data.select(rows)


class _Dicts(Frame):
    """A list of mappings. A row without a column has no value there."""

    def cells(self, column: str) -> Sequence[Any]:
        return _without_nan([row.get(column) for row in self._data])

    def column(self, name: str, column: Column) -> Any:
        return column.values

    def table(self, columns: Mapping[str, Column]) -> Any:
        values = [column.values for column in columns.values()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]

    def taken(self, rows: Sequence[int]) -> Any:
        return [self._data[row] for row in rows]
