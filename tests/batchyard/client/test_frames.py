"""Tables of each kind give their cells, None for what is empty, and take columns of their own kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from batchyard.client import frames
from batchyard.client.frames import Column
from batchyard.errors import ConfigurationError

polars = pytest.importorskip("polars")
datasets = pytest.importorskip("datasets")

CELLS = {"text": ["a", None, "c"], "number": [1.5, math.nan, 3.0]}
KINDS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": lambda cells: pd.DataFrame(cells, index=[30, 10, 20]),
    "polars": polars.DataFrame,
    "pyarrow": pa.table,
    "datasets": datasets.Dataset.from_dict,
    "rows": lambda cells: [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)],
}


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param](CELLS)


def test_empty_cells_of_every_kind_are_none(table: Any) -> None:
    frame = frames.of(table)
    assert frame.columns == ["text", "number"]
    assert len(frame) == 3
    assert list(frame.cells("text")) == ["a", None, "c"]
    assert list(frame.cells("number")) == [1.5, None, 3.0]


def test_a_new_column_is_one_that_the_table_takes(table: Any) -> None:
    answers = frames.of(table).column("answer", Column(["x", None, "z"]))
    match table:
        case pd.DataFrame():
            table["answer"] = answers
            assert table["answer"].isna().tolist() == [False, True, False]
            assert table["answer"][30] == "x", "by the table's index, not by position"
        case polars.DataFrame():
            assert table.with_columns(answer=answers)["answer"].to_list() == ["x", None, "z"]
        case pa.Table():
            assert table.append_column("answer", answers)["answer"].to_pylist() == ["x", None, "z"]
        case datasets.Dataset():
            assert list(table.add_column("answer", answers)["answer"]) == ["x", None, "z"]
        case _:
            assert answers == ["x", None, "z"]


def test_a_new_table_keeps_integers_and_truth_values_beside_empty_cells(table: Any) -> None:
    columns = {"tokens": Column([7, None, 9], "integer"), "fits": Column([True, False, None], "boolean")}
    new = frames.of(table).table(columns)
    again = frames.of(new)
    assert again.columns == ["tokens", "fits"]
    assert [type(cell) for cell in again.cells("tokens")] == [int, type(None), int]
    assert list(again.cells("fits")) == [True, False, None]
    if isinstance(new, pd.DataFrame):
        assert new.index.tolist() == [30, 10, 20]


def test_a_table_without_rows_gives_a_column_without_rows(table: Any) -> None:
    empty = table[:0] if not isinstance(table, datasets.Dataset) else table.select([])
    assert len(frames.of(empty).column("answer", Column([]))) == 0


def test_values_of_different_shapes_are_json_where_the_table_has_one_type() -> None:
    column = Column([{"a": 1}, [2], None], None)
    assert frames.of(pa.table(CELLS)).column("x", column).to_pylist() == ['{"a": 1}', "[2]", None]


def test_every_missing_value_of_pandas_is_none() -> None:
    table = pd.DataFrame({"x": pd.Series([pd.NA, pd.NaT, None, math.nan, "text", [1]], dtype="object"), 0: range(6)})
    assert frames.of(table).cells("x") == [None, None, None, None, "text", [1]]
    assert frames.of(table).cells("0") == [0, 1, 2, 3, 4, 5]


def test_tables_that_export_arrow_are_read_and_rows_may_lack_a_column() -> None:
    class Relation:
        """What a library exports that has tables of its own."""

        def __arrow_c_stream__(self, schema: Any = None) -> Any:
            return pa.table(CELLS).__arrow_c_stream__(schema)

    assert frames.of(Relation()).cells("text") == ["a", None, "c"]
    assert frames.of([{"a": 1}, {"b": 2}]).cells("b") == [None, 2]


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (polars.LazyFrame(CELLS), "collect() it first"),
        (pd.Series(["a"]), "to_frame()"),
        (datasets.DatasetDict(), "name one of its splits"),
        ("in.csv", "pass a data frame"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "columns of the same name: a; rename them"),
    ],
)
def test_what_is_no_table_is_refused_with_a_remedy(data: Any, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy.replace("(", r"\(").replace(")", r"\)")):
        frames.of(data)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_vectors_are_a_column_of_every_kind(table: Any, dtype: str) -> None:
    one = np.arange(2, dtype=dtype)
    frame = frames.of(table)
    column = frame.column("vector", Column([one, None, one + 1], "vector"))
    first, nothing, last = column.tolist() if hasattr(column, "tolist") else list(column)
    assert nothing is None or nothing.as_py() is None
    assert [list(vector.as_py() if isinstance(vector, pa.Scalar) else vector) for vector in (first, last)] == [
        [0, 1],
        [1, 2],
    ]
    assert len(frames.of(frame.table({"vector": Column([None] * 3, "vector")}))) == 3


@pytest.mark.parametrize("rows", [[0, 2], []])
def test_some_rows_are_a_table_of_the_same_kind(table: Any, rows: list[int]) -> None:
    taken = frames.of(table).taken(rows)
    assert type(taken) is type(table) and len(taken) == len(rows)
    assert list(frames.of(taken).cells("text")) == [CELLS["text"][row] for row in rows]
    if isinstance(taken, pd.DataFrame):
        assert taken.index.tolist() == [table.index[row] for row in rows]
