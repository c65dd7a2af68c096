"""Plots of a tune show its cells by their names."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from batchyard.recipes import Matrix
from recipes.reports import TOP
from recipes.tune import plots, report
from tests.recipes.tune.made import MINI, options, repeat, result, the_cells

SVG = "{http://www.w3.org/2000/svg}"


def test_plots_are_svg_with_the_names_of_the_front(document: dict[str, Any]) -> None:
    drawn = plots.of(document)
    assert sorted(drawn) == ["heat-map", "throughput"]
    texts = {name: "".join(ElementTree.fromstring(svg).itertext()) for name, svg in drawn.items()}
    assert "mini-8x1" in texts["throughput"] and "mini-16x1" in texts["throughput"]
    assert "batch 16" in texts["heat-map"] and "concurrency 2" in texts["heat-map"]


def circles(svg: str) -> dict[str, ElementTree.Element]:
    """The dots of a plot by the names in their titles."""
    root = ElementTree.fromstring(svg)
    return {"".join(dot.itertext()): dot for dot in root.iter(f"{SVG}circle")}


def test_the_fastest_and_the_slowest_cell_stand_at_the_ends_of_the_axes() -> None:
    first, second = the_cells(MINI, batch=[8, 16])
    results = [result(first, repeat(100, p95=1.0)), result(second, repeat(200, p95=4.0))]
    drawn = circles(plots.of(report.document(options(batch=[8, 16]), [MINI], results))["throughput"])
    slow = drawn[second.name]
    assert (float(slow.attrib["cx"]), float(slow.attrib["cy"])) == (plots.RIGHT, TOP)
    fast = drawn[first.name]
    assert float(fast.attrib["cx"]) == pytest.approx(plots.LEFT + (plots.RIGHT - plots.LEFT) / 4, abs=0.1)
    assert float(fast.attrib["cy"]) == pytest.approx((plots.BOTTOM + TOP) / 2, abs=0.1)


def test_the_recommended_cell_has_the_largest_dot_and_those_that_others_beat_are_pale(
    document: dict[str, Any],
) -> None:
    drawn = circles(plots.of(document)["throughput"])
    assert {name for name, dot in drawn.items() if dot.attrib["r"] == "7"} == {document["recommendation"]["cell"]}
    beaten = {row["cell"]["name"] for row in document["cells"] if row["medians"] and not row["pareto"]}
    assert {name for name, dot in drawn.items() if "fill-opacity" in dot.attrib} == beaten == {"mini-8x2"}


def test_names_that_would_cover_each_other_are_left_out() -> None:
    taken: list[tuple[float, float, float]] = []
    shown = [plots._label("a-name", 300.0, 200.0, "", taken) for _ in range(6)]
    assert [bool(text) for text in shown] == [True, True, True, True, False, False]
    assert plots._label("a-name", 300.0, 260.0, "", taken) != ""


def test_equal_values_of_a_heat_map_have_one_shade_and_missing_ones_none() -> None:
    svg = plots._heat_map(Matrix(title="t", rows=["<a>", "b"], columns=["x"], values=[[5.0], [None]]))
    root = ElementTree.fromstring(svg)
    assert [box.attrib["fill-opacity"] for box in root.iter(f"{SVG}rect") if "fill-opacity" in box.attrib] == ["0.330"]
    assert "<a>" in "".join(root.itertext())
