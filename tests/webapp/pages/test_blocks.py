"""A block of a view is one of five kinds, or says what is wrong with it and where."""

from __future__ import annotations

from typing import Any

import pytest

from webapp.pages import blocks


@pytest.mark.parametrize(
    "block",
    [
        {"kind": "table", "columns": ["a"], "rows": [[None], [{"any": "value"}]]},
        {"kind": "bars", "labels": ["a", 1], "values": [1, None]},
        {"kind": "histogram", "title": "Sizes", "labels": [], "values": []},
        {"kind": "lines", "x": [1, 2], "series": [{"name": "s", "y": [1, None], "low": [0, 0], "high": [2, 2]}]},
        {"kind": "matrix", "rows": ["r"], "columns": ["a", "b"], "values": [[1, None]]},
    ],
)
def test_each_kind_is_a_block(block: dict[str, Any]) -> None:
    parsed = blocks.parse(block)
    assert parsed.kind == block["kind"]
    assert parsed.title == block.get("title", "")


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ({"kind": "bars", "labels": ["a"], "values": []}, "bars Value error, 1 labels, 0 values"),
        ({"kind": "bars", "labels": ["a"], "values": [float("nan")]}, r"bars\.values\.0 "),
        ({"kind": "lines", "x": [1], "series": [{"name": "s", "y": [1, 2]}]}, "series 's' has 2 values, x has 1"),
        ({"kind": "matrix", "rows": ["r"], "columns": ["a"], "values": [[1, 2]]}, "the values are not 1 rows of 1"),
        ({"kind": "pie"}, "'pie'"),
        ("no block", "^.*dict"),
    ],
)
def test_what_is_no_block_says_where(block: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        blocks.parse(block)
