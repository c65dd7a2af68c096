"""The blocks of a view become shapes that stand where their values say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from webapp.pages import charts
from webapp.pages.charts import WIDTH, Chart
from webapp.pages.formats import NOTHING

VALUES = st.lists(st.floats(-1e9, 1e9) | st.none(), min_size=1, max_size=40)


def chart(**block: Any) -> Chart:
    (drawn,) = charts.of_view([block])
    assert not drawn.problem
    return drawn


@given(VALUES, st.sampled_from(["bars", "histogram"]))
@example([2.2250738585072014e-308], "bars")
def test_bars_stay_in_the_picture(values: list[float | None], kind: str) -> None:
    drawn = chart(kind=kind, labels=[str(number) for number in range(len(values))], values=values)
    for box in drawn.boxes:
        assert box.x >= -0.01 and box.x + box.width <= WIDTH + 0.01
        assert box.width >= 0 and box.height >= 0
        assert box.y >= -0.01 and box.y + box.height <= drawn.height + 0.01


def test_a_bar_is_as_long_as_its_value() -> None:
    lengths = [box.width for box in chart(kind="bars", labels=["a", "b"], values=[1, 4]).boxes]
    assert lengths[1] == pytest.approx(4 * lengths[0])
    heights = [box.height for box in chart(kind="histogram", labels=["a", "b"], values=[2, 5]).boxes]
    assert heights[1] == pytest.approx(2.5 * heights[0])


@given(VALUES)
def test_lines_stay_in_the_picture(values: list[float | None]) -> None:
    drawn = chart(kind="lines", x=list(range(len(values))), series=[{"name": "a", "y": values}])
    for line in drawn.lines:
        points = [tuple(map(float, point.split(","))) for point in line.path.removeprefix("M").split("L") if point]
        assert all(0 <= x <= WIDTH and 0 <= y <= drawn.height for x, y in points)


def test_a_line_has_its_values_between_named_rules_and_a_band() -> None:
    series = {"name": "pass@k", "y": [0.5, 0.75, 1], "low": [0.4, 0.7, 0.9], "high": [0.6, 0.8, 1]}
    drawn = chart(kind="lines", title="pass@k", x=[1, 4, 16], series=[series])
    names = [text.text for text in drawn.texts if text.anchor == "end"]
    assert names == ["0", "0.25", "0.5", "0.75", "1"]
    (line,) = drawn.lines
    assert [y for _, y in line.points] == pytest.approx([drawn.rules[2], drawn.rules[3], drawn.rules[4]])
    first, second, third = (x for x, _ in line.points)
    assert third - second == pytest.approx(second - first)  # 1, 4, 16 grow by factors
    assert line.band.count("L") == 5
    assert drawn.columns == ["", "pass@k", "low", "high"]
    assert drawn.rows[1] == ["4", "0.75", "0.7", "0.8"]


def test_shares_have_the_whole_axis_from_0_to_1_and_values_beyond_it_stretch_it() -> None:
    def names(*y: float) -> list[str]:
        drawn = chart(kind="lines", x=[1, 2], series=[{"name": "pass@k", "y": list(y)}], y_range=[0, 1])
        return [text.text for text in drawn.texts if text.anchor == "end"]

    assert names(0.91, 0.93) == names(0.01, 0.02) == ["0", "0.25", "0.5", "0.75", "1"]
    assert names(0.5, 2)[-1] == "2"


def test_many_points_are_a_line_without_circles() -> None:
    for number, circles in ((24, 24), (25, 0)):
        drawn = chart(kind="lines", x=list(range(number)), series=[{"name": "a", "y": [1] * number}])
        assert len(drawn.lines[0].points) == circles and drawn.lines[0].path.count("L") == number - 1


def test_a_cell_is_darker_the_higher_it_is_and_none_is_empty() -> None:
    drawn = chart(kind="matrix", rows=["a", "b"], columns=["c", "d"], values=[[1, 2], [None, 4]])
    shades = [box.shade for box in drawn.boxes]
    assert len(shades) == 3 and shades == sorted(shades)
    assert [text.text for text in drawn.texts if text.kind == "value"] == ["1", "2", NOTHING, "4"]


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
    drawn = charts.of_view([block, {"kind": "bars", "labels": ["a"], "values": [1]}])
    assert drawn[0].title == "Shares"
    assert problem in drawn[0].problem
    assert drawn[1].boxes and not drawn[1].problem


@pytest.mark.parametrize("view", [None, {}, "x", [], [1, None, []]])
def test_what_is_no_view_has_no_chart(view: Any) -> None:
    assert all(drawn.problem for drawn in charts.of_view(view))


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
