"""Blocks keep numbers as they are, and cross the wire in one order of keys."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from pydantic import ValidationError

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
        ({"kind": "histogram", "labels": ["a"], "values": []}, "1 labels, 0 values"),
        ({"kind": "bars", "labels": ["a"], "values": [float("inf")]}, "finite"),
        ({"kind": "lines", "x": [1], "series": [{"name": "a", "y": [1], "low": []}]}, "'a' has 0 values, x has 1"),
        ({"kind": "matrix", "rows": ["a", "b"], "columns": [], "values": [[]]}, "2 rows of 0"),
        ({"kind": "pie"}, "pie"),
    ],
)
def test_a_block_that_cannot_be_drawn_is_refused(block: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        blocks.parse(block)
