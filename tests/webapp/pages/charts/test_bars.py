"""A box is as large, or as dark, as its value says, and in the picture."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.webapp.pages.charts.test_view import VALUES, chart
from webapp.pages.charts.bars import stacked
from webapp.pages.charts.shapes import WIDTH
from webapp.pages.formats import NOTHING


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


def test_a_cell_is_darker_the_higher_it_is_and_none_is_empty() -> None:
    drawn = chart(kind="matrix", rows=["a", "b"], columns=["c", "d"], values=[[1, 2], [None, 4]])
    shades = [box.shade for box in drawn.boxes]
    assert len(shades) == 3 and shades == sorted(shades)
    assert [text.text for text in drawn.texts if text.kind == "value"] == ["1", "2", NOTHING, "4"]


def test_parts_of_a_column_stand_on_one_another_and_none_is_drawn_for_nothing() -> None:
    drawn = stacked("tokens", ["1", "2"], {"a": [3, 0], "b": [1, 2]})
    assert [(box.series, box.height / drawn.boxes[1].height) for box in drawn.boxes] == [
        *((0, pytest.approx(3)), (1, pytest.approx(1)), (1, pytest.approx(2)))
    ]
    first, above, _ = drawn.boxes
    assert above.y + above.height == pytest.approx(first.y)
    assert [line.name for line in drawn.lines] == ["a", "b"]
