"""A line stands where its values say, between round numbers."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.webapp.pages.charts.test_view import VALUES, chart
from webapp.pages.charts.shapes import WIDTH


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
