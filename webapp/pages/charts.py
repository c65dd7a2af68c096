"""Charts: the blocks of a job's view (batchyard.recipes.blocks) as shapes of an SVG, drawn without a script.

A chart has a size in abstract units, which `templates/charts.html` scales. Colours and fonts are in `style.css`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from batchyard.recipes import blocks
from batchyard.recipes.blocks import Bars, Histogram, Lines, Matrix, Series, Table
from webapp.pages.formats import figure

WIDTH = 480.0
ROW = 24.0
CHARACTER = 7.0
"""Approximate width of a character, to leave room for labels."""
MAX_BLOCKS = 32
MAX_BARS = 64
MAX_SIDE = 24
MAX_SERIES = 12
MAX_ROWS = 200
MAX_MARKED = 24
"""Most points of a line that are drawn as circles."""
LABEL = 20
"""Most characters of a label."""
SMALLEST = 1e-200
"""Smaller differences are none."""
RATIO = 1.5
"""The x of a line's points are drawn on a logarithmic scale if each is at least so many times the one before."""


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
    """A bar or a cell. `shade` is its opacity."""

    x: float
    y: float
    width: float
    height: float
    shade: float = 1.0


@dataclass(frozen=True)
class ChartLine:
    """A series of a chart of lines: its path, its points if they are few, and the path of its band.

    `index` chooses its look.
    """

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


def of_view(view: Any) -> list[Chart]:
    """Return the charts of a view. A block that is none is one with a `problem`."""
    return [_chart(block) for block in view[:MAX_BLOCKS]] if isinstance(view, list) else []


def _chart(block: Any) -> Chart:
    try:
        parsed = blocks.parse(block)
    except ValueError as error:
        name = block.get("title") if isinstance(block, dict) else None
        return Chart(str(name or "A block of the view"), problem=f"cannot be drawn: {error}")
    if isinstance(parsed, Table):
        return _with_values(Chart(parsed.title), parsed.columns, parsed.rows)
    if isinstance(parsed, Matrix):
        return _matrix(parsed)
    if isinstance(parsed, Lines):
        return _lines(parsed)
    return _histogram(parsed) if isinstance(parsed, Histogram) else _bars(parsed)


def _with_values(chart: Chart, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Chart:
    chart.columns = list(columns)
    chart.rows = [[figure(value) for value in row] for row in rows[:MAX_ROWS]]
    width = max((len(row) for row in rows), default=0)
    values = [[row[index] for row in rows if len(row) > index] for index in range(width)]
    chart.numeric = [
        any(isinstance(value, int | float) for value in column)
        and all(value is None or isinstance(value, int | float) for value in column)
        for column in values
    ]
    if len(rows) > MAX_ROWS:
        chart.more = f"and {len(rows) - MAX_ROWS:,} more rows in view.json"
    return chart


def _short(label: Any) -> str:
    text = figure(label)
    return text if len(text) <= LABEL else f"{text[: LABEL - 1]}…"


def _labelled(block: Bars | Histogram) -> Chart:
    chart = _with_values(
        Chart(block.title), ["", "value"], [[*row] for row in zip(block.labels, block.values, strict=True)]
    )
    if len(block.labels) > MAX_BARS:
        chart.more = f"The first {MAX_BARS} of {len(block.labels):,} are drawn."
    return chart


def _bars(block: Bars) -> Chart:
    """Draw a row a label, its bar from zero."""
    chart = _labelled(block)
    labels, values = [_short(label) for label in block.labels[:MAX_BARS]], block.values[:MAX_BARS]
    left = 10 + CHARACTER * max(map(len, labels), default=0)
    right = 10 + CHARACTER * max((len(figure(value)) for value in values), default=0)
    low, high = min(0.0, *(value or 0 for value in values), 0.0), max(0.0, *(value or 0 for value in values), 0.0)
    room, spread = WIDTH - left - right, (high - low) or 1.0

    def length(value: float) -> float:
        return room * (value / spread)  # a share first: pixels over a tiny spread would be infinite

    zero = left + length(-low)
    for index, (label, value) in enumerate(zip(labels, values, strict=True)):
        y = index * ROW
        chart.texts.append(Text(left - 8, y + ROW * 0.68, label, "end"))
        if value is not None:
            width = length(abs(value))
            chart.boxes.append(Box(zero if value >= 0 else zero - width, y + 4, width, ROW - 8))
        end = zero + length(max(value or 0, 0))
        chart.texts.append(Text(end + 6, y + ROW * 0.68, figure(value), "start", "value"))
    chart.height = ROW * len(labels)
    return chart


def _histogram(block: Histogram) -> Chart:
    """Draw a column a label, with its value on top."""
    chart = _labelled(block)
    labels, values = [_short(label) for label in block.labels[:MAX_BARS]], block.values[:MAX_BARS]
    if not labels:
        return chart
    top, bottom, height = 18.0, 150.0, 172.0
    step = WIDTH / len(labels)
    high = max(0.0, *(value or 0 for value in values), 0.0) or 1.0
    every = _every(step, CHARACTER * (1 + max(map(len, labels))))
    says = step >= CHARACTER * max(len(figure(value)) for value in values)
    for index, (label, value) in enumerate(zip(labels, values, strict=True)):
        x, size = index * step, (bottom - top) * (max(value or 0, 0) / high)
        chart.boxes.append(Box(x + step * 0.1, bottom - size, step * 0.8, size))
        if says or value == high:
            chart.texts.append(Text(x + step / 2, bottom - size - 5, figure(value), kind="value"))
        if index % every == 0:
            chart.texts.append(_within(x + step / 2, bottom + 16, label))
    chart.rules, chart.height = [bottom], height
    return chart


def _within(x: float, y: float, label: str) -> Text:
    """Return a label in the middle above `x`, or at the edge that it would cross."""
    half = CHARACTER * len(label) / 2
    if x < half:
        return Text(0, y, label, "start")
    return Text(WIDTH, y, label, "end") if x + half > WIDTH else Text(x, y, label)


def _every(step: float, width: float) -> int:
    """Return that only each n-th label of this width has room."""
    return max(1, math.ceil(width / step))


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers from `low` or below to `high` or above, in about four steps."""
    raw = max((high - low) / 4 or abs(high), SMALLEST)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10, 20) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)]
    return ticks if ticks[-1] > ticks[0] else [low, low + (abs(low) or 1.0)]


def _lines(block: Lines) -> Chart:
    """Draw a line a series, with a label for each point that has room for one."""
    chart = _lines_table(block)
    frame = _frame(block)
    if frame is None:
        return chart
    places = _places(block.x, frame.left + 10, frame.right - 10)
    last = -math.inf
    for place, x in sorted(zip(places, block.x, strict=True)):
        width = CHARACTER * len(figure(x)) + 6
        if place - last >= width:
            chart.texts.append(Text(place, frame.bottom + 18, figure(x)))
            last = place
    _draw_series(chart, block, frame, places)
    return chart


def over_time(block: Lines, *, unit: str, marks: Mapping[str, float], looks: Mapping[str, int]) -> Chart:
    """Draw lines over the time since a start, on an axis of round numbers of a `unit`.

    Args:
        marks: times with a dashed line each, by their names.
        looks: number of the look of a series, by its name; others are numbered as they stand.
    """
    chart = _lines_table(block)
    frame = _frame(block)
    if frame is None:
        return chart
    low, high = 0.0, max(*block.x, *marks.values())

    def to_x(time: float) -> float:
        return round(frame.left + (frame.right - frame.left) * ((time - low) / ((high - low) or 1.0)), 2)

    ticks = [tick for tick in _ticks(low, high) if tick <= high] if high > low else [0.0]
    for tick in ticks:
        label = f"{figure(tick)} {unit}" if tick == ticks[-1] else figure(tick)
        chart.texts.append(_within(to_x(tick), frame.bottom + 18, label))
    for name, time in marks.items():
        chart.marks.append(to_x(time))
        chart.texts.append(_within(to_x(time), frame.top - 4, name))
    _draw_series(chart, block, frame, [to_x(time) for time in block.x])
    chart.lines = [replace(line, index=looks.get(line.name, line.index)) for line in chart.lines]
    return chart


@dataclass(frozen=True)
class _Frame:
    """The rectangle of a chart of lines, and the round numbers of its vertical axis."""

    left: float
    ticks: list[float]
    right: float = WIDTH - 14
    top: float = 14.0
    bottom: float = 178.0

    def to_y(self, value: float) -> float:
        share = (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])
        return round(self.bottom - (self.bottom - self.top) * share, 2)


def _frame(block: Lines) -> _Frame | None:
    """Return the frame that holds all values, and the block's range; None if there are no values."""
    values = [
        value
        for one in block.series[:MAX_SERIES]
        for column in (one.y, one.low or [], one.high or [])
        for value in column
        if value is not None
    ]
    if not values or not block.x:
        return None
    low, high = min(values), max(values)
    if block.y_range is not None:
        low, high = min(low, block.y_range[0]), max(high, block.y_range[1])
    elif 0 <= low <= high / 2:
        low = 0.0
    ticks = _ticks(low, high)
    return _Frame(14 + CHARACTER * max(len(figure(tick)) for tick in ticks), ticks)


def _lines_table(block: Lines) -> Chart:
    """Return a chart of lines that has only its values, in a table."""
    series = block.series[:MAX_SERIES]
    columns = [
        "",
        *(name for one in series for name in ([one.name, "low", "high"] if one.low and one.high else [one.name])),
    ]
    rows = [[x, *(value for one in series for value in _at(one, index))] for index, x in enumerate(block.x)]
    chart = _with_values(Chart(block.title), columns, rows)
    if len(block.series) > MAX_SERIES:
        chart.more = f"The first {MAX_SERIES} of {len(block.series)} series are drawn."
    return chart


def _draw_series(chart: Chart, block: Lines, frame: _Frame, places: Sequence[float]) -> None:
    """Add the rules, and each series over its band if it has one."""
    chart.left, chart.height = frame.left, frame.bottom + 24
    chart.rules = [frame.to_y(tick) for tick in frame.ticks]
    chart.texts += [Text(frame.left - 8, frame.to_y(tick) + 4, figure(tick), "end") for tick in frame.ticks]
    for index, one in enumerate(block.series[:MAX_SERIES]):
        points = [(place, frame.to_y(y)) for place, y in zip(places, one.y, strict=True) if y is not None]
        marked = points if len(points) <= MAX_MARKED else []
        chart.lines.append(ChartLine(index, one.name, _path(points), marked, _band(one, frame, places)))


def _band(series: Series, frame: _Frame, places: Sequence[float]) -> str:
    """Return the path around what is between a series' low and high; empty if it has no two of them."""
    if not series.low or not series.high:
        return ""
    ends = [
        (place, frame.to_y(below), frame.to_y(above))
        for place, below, above in zip(places, series.low, series.high, strict=True)
        if below is not None and above is not None
    ]
    outline = [(x, y) for x, _, y in ends] + [(x, y) for x, y, _ in reversed(ends)]
    return _path(outline) + "Z" if len(ends) > 1 else ""


def _at(series: Series, index: int) -> list[float | None]:
    if series.low and series.high:
        return [series.y[index], series.low[index], series.high[index]]
    return [series.y[index]]


def _places(numbers: Sequence[float], left: float, right: float) -> list[float]:
    """Return where numbers stand between two places: by their logarithm if they grow by factors."""
    if len(numbers) > 2 and numbers[0] > 0 and all(after >= RATIO * before for before, after in pairwise(numbers)):
        numbers = [math.log(number) for number in numbers]
    low, high = min(numbers), max(numbers)
    if low == high:
        return [(left + right) / 2] * len(numbers)
    return [round(left + (right - left) * ((number - low) / (high - low)), 2) for number in numbers]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points) if points else ""


def _matrix(block: Matrix) -> Chart:
    """Draw a cell a value, the darker the higher."""
    rows = [[name, *values] for name, values in zip(block.rows, block.values, strict=True)]
    chart = _with_values(Chart(block.title), ["", *block.columns], rows)
    if not rows or not block.columns or max(len(rows), len(block.columns)) > MAX_SIDE:
        return chart
    names, columns = [_short(name) for name in block.rows], [_short(name) for name in block.columns]
    values = [value for row in block.values for value in row if value is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    left = 10 + CHARACTER * max(map(len, names))
    widest = max(max(map(len, columns)), *(len(figure(value)) for value in values), 3)
    step = max((WIDTH - left) / len(columns), CHARACTER * widest + 8)
    chart.width = left + step * len(columns)
    top, row_height = 20.0, 28.0
    chart.texts = [Text(left + (index + 0.5) * step, top - 6, name) for index, name in enumerate(columns)]
    for index, (name, row) in enumerate(zip(names, block.values, strict=True)):
        y = top + index * row_height
        chart.texts.append(Text(left - 8, y + row_height * 0.64, name, "end"))
        for column, value in enumerate(row):
            x = left + column * step
            if value is None:
                chart.texts.append(Text(x + step / 2, y + row_height * 0.64, figure(None), kind="value"))
                continue
            shade = 0.06 + 0.4 * ((value - low) / (high - low) if high > low else 0.5)
            chart.boxes.append(Box(x + 1, y + 1, step - 2, row_height - 2, round(shade, 3)))
            chart.texts.append(Text(x + step / 2, y + row_height * 0.64, figure(value), kind="value"))
    chart.height = top + row_height * len(names) + 2
    return chart
