"""A block keeps its numbers as they are and its keys in order, or says what is wrong with it and where."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from batchyard.recipes import Bars, Lines, Matrix, Series, Table, blocks

BLOCKS: list[tuple[blocks.Block, str]] = [
    (Table(title="T", columns=["a"], rows=[[1], [None], [1.5]]),
     '{"kind":"table","title":"T","columns":["a"],"rows":[[1],[null],[1.5]]}'),
    (Bars(title="B", labels=["a", 2], values=[3, None]),
     '{"kind":"bars","title":"B","labels":["a",2],"values":[3,null]}'),
    (Lines(title="L", x=[1, 2.0], series=[Series(name="a", y=[1, None])]),
     '{"kind":"lines","title":"L","x":[1,2.0],"series":[{"name":"a","y":[1,null]}]}'),
    (Lines(title="L", x=[1], series=[Series(name="a", y=[1], low=[0], high=[None])]),
     '{"kind":"lines","title":"L","x":[1],"series":[{"name":"a","y":[1],"low":[0],"high":[null]}]}'),
    (Matrix(title="M", rows=["a"], columns=["b"], values=[[2]]),
     '{"kind":"matrix","title":"M","rows":["a"],"columns":["b"],"values":[[2]]}'),
]  # fmt: skip


@pytest.mark.parametrize(("block", "text"), BLOCKS)
def test_a_block_is_its_json_and_is_read_from_it(block: blocks.Block, text: str) -> None:
    (value,) = blocks.as_json([block])
    assert orjson.dumps(value).decode() == text
    assert blocks.parse(orjson.loads(text)) == block


def test_a_mapping_of_a_recipe_stays_as_it_is_even_if_it_cannot_be_drawn() -> None:
    mappings: list[dict[str, Any]] = [{"kind": "bars", "labels": [1], "values": [2.0]}, {"kind": "pie", "slices": 3}]
    assert blocks.as_json(mappings) == mappings


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ({"kind": "bars", "labels": ["a"], "values": []}, "^1 labels, 0 values"),
        ({"kind": "bars", "labels": ["a"], "values": [float("nan")]}, r"^values\.0: NaN is not a finite number"),
        ({"kind": "lines", "x": [1], "series": [{"name": "s", "y": [1, 2]}]}, "series 's' has 2 values, x has 1"),
        ({"kind": "matrix", "rows": ["r"], "columns": ["a"], "values": [[1, 2]]}, "the values are not 1 rows of 1"),
        ({"kind": "lines", "x": [1], "series": [{"name": "s", "y": [1], "low": []}]}, "series 's' has 0 values"),
        ({"kind": "pie"}, '"pie"} is not one of'),
        ("no block", "is not an object"),
    ],
)
def test_what_is_no_block_says_where(block: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        blocks.parse(block)
