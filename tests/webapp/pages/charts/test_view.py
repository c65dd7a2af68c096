"""The blocks of a view become charts, or say why they cannot be drawn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from webapp.pages.charts.shapes import Chart
from webapp.pages.charts.view import charts_of
from webapp.pages.formats import NOTHING

VALUES = st.lists(st.floats(-1e9, 1e9) | st.none(), min_size=1, max_size=40)


def chart(**block: Any) -> Chart:
    (drawn,) = charts_of([block])
    assert not drawn.problem
    return drawn


def test_a_table_shows_few_digits() -> None:
    drawn = chart(kind="table", columns=["name", "n", "mean"], rows=[["a", 12345, 0.123456], ["b", 1, None]])
    assert drawn.rows == [["a", "12,345", "0.1235"], ["b", "1", NOTHING]]
    assert drawn.numeric == [False, True, True]


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ({"kind": "pie", "title": "Shares"}, "pie"),
        ({"kind": "bars", "title": "Shares", "labels": ["a"], "values": [1, 2]}, "1 labels, 2 values"),
        ({"kind": "bars", "title": "Shares", "labels": ["a"], "values": [float("nan")]}, "finite"),
        ({"kind": "matrix", "title": "Shares", "rows": ["a"], "columns": ["b"], "values": [[1, 2]]}, "1 rows of 1"),
        ({"kind": "lines", "title": "Shares", "x": [1], "series": [{"name": "a", "y": []}]}, "'a' has 0 values"),
        ({"kind": "lines", "title": "Shares", "x": [], "series": [], "y_range": [1, 0]}, "y_range must go up"),
        ({"title": "Shares"}, "kind"),
    ],
)
def test_a_block_that_cannot_be_drawn_says_why(block: dict[str, Any], problem: str) -> None:
    drawn = charts_of([block, {"kind": "bars", "labels": ["a"], "values": [1]}])
    assert drawn[0].title == "Shares"
    assert problem in drawn[0].problem
    assert drawn[1].boxes and not drawn[1].problem


@pytest.mark.parametrize("view", [None, {}, "x", [], [1, None, []]])
def test_what_is_no_view_has_no_chart(view: Any) -> None:
    assert all(drawn.problem for drawn in charts_of(view))


@pytest.mark.parametrize(
    "block",
    [
        {"kind": "bars", "labels": [], "values": []},
        {"kind": "histogram", "labels": [], "values": []},
        {"kind": "histogram", "labels": ["a"], "values": [None]},
        {"kind": "lines", "x": [], "series": []},
        {"kind": "lines", "x": [1, 2], "series": [{"name": "a", "y": [None, None]}]},
        {"kind": "lines", "x": [1], "series": [{"name": "a", "y": [0]}]},
        {"kind": "matrix", "rows": [], "columns": [], "values": []},
        {"kind": "matrix", "rows": ["a"], "columns": ["a"], "values": [[None]]},
        {"kind": "table", "columns": [], "rows": []},
    ],
)
def test_a_block_may_be_empty(block: dict[str, Any]) -> None:
    assert not chart(**block).problem
