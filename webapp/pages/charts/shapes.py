"""The shapes of a chart, in abstract units that `templates/charts.html` scales, and the table with its values."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from webapp.pages.formats import figure

WIDTH = 480.0
CHARACTER = 7.0
"""Approximate width of a character, to leave room for labels."""
MAX_ROWS = 200
LABEL = 20
"""Most characters of a label."""


@dataclass(frozen=True)
class Text:
    """A text at a point. `anchor` is SVG's text-anchor."""

    x: float
    y: float
    text: str
    anchor: str = "middle"
    kind: str = ""


@dataclass(frozen=True)
class Box:
    """A bar or a cell. `shade` is its opacity, `series` the look of what it is a part of."""

    x: float
    y: float
    width: float
    height: float
    shade: float = 1.0
    series: int | None = None


@dataclass(frozen=True)
class ChartLine:
    """A series of a chart of lines: its path, its points if few, and its band. `index` chooses its look."""

    index: int
    name: str
    path: str
    points: list[tuple[float, float]]
    band: str = ""


@dataclass
class Chart:
    """A block to be drawn.

    Its values stand in a table, too: all of it if it has no shapes. `rules` are heights of lines from left to right,
    `marks` places of lines from top to bottom. `more` says what is not shown, `problem` why nothing is.
    """

    title: str
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    rules: list[float] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    lines: list[ChartLine] = field(default_factory=list)
    left: float = 0.0
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    numeric: list[bool] = field(default_factory=list)
    more: str = ""
    problem: str = ""
    width: float = WIDTH


def with_values(chart: Chart, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Chart:
    chart.columns = list(columns)
    chart.rows = [[figure(value) for value in row] for row in rows[:MAX_ROWS]]
    nothing, numbers = {type(None)}, {int, float, bool}
    types = [{type(value) for value in column} - nothing for column in itertools.zip_longest(*rows)]
    chart.numeric = [bool(column) and column <= numbers for column in types]
    if len(rows) > MAX_ROWS:
        chart.more = f"and {len(rows) - MAX_ROWS:,} more rows in view.json"
    return chart


def short(label: Any) -> str:
    text = figure(label)
    return text if len(text) <= LABEL else f"{text[: LABEL - 1]}…"


def within(x: float, y: float, label: str) -> Text:
    """Return a label in the middle above `x`, or at the edge that it would cross."""
    half = CHARACTER * len(label) / 2
    if x < half:
        return Text(0, y, label, "start")
    return Text(WIDTH, y, label, "end") if x + half > WIDTH else Text(x, y, label)
