"""Charts of lines between round numbers, over anything or over time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from batchyard.recipes.blocks import Lines, Series
from webapp.pages.charts.shapes import CHARACTER, WIDTH, Chart, ChartLine, Text, with_values, within
from webapp.pages.formats import figure

MAX_SERIES = 12
MAX_MARKED = 24
"""Most points of a line that are drawn as circles."""
SMALLEST = 1e-200
"""Smaller differences are none."""
RATIO = 1.5
"""The x of a line's points are drawn on a logarithmic scale if each is at least so many times the one before."""


def over_numbers(block: Lines) -> Chart:
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

    `marks` are times with a dashed line each, by their names. `looks` are numbers of looks by name of a series; others
    are numbered as they stand.
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
        chart.texts.append(within(to_x(tick), frame.bottom + 18, label))
    for name, time in marks.items():
        chart.marks.append(to_x(time))
        chart.texts.append(within(to_x(time), frame.top - 4, name))
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
    columns = [column or [] for one in block.series[:MAX_SERIES] for column in (one.y, one.low, one.high)]
    values = [value for column in columns for value in column if value is not None]
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
    columns: list[tuple[str, Sequence[float | None]]] = [("", block.x)]
    for one in block.series[:MAX_SERIES]:
        columns.append((one.name, one.y))
        columns += [("low", one.low), ("high", one.high)] if one.low and one.high else []
    rows = list(zip(*(values for _, values in columns), strict=True))
    chart = with_values(Chart(block.title), [name for name, _ in columns], rows)
    if len(block.series) > MAX_SERIES:
        chart.more = f"The first {MAX_SERIES} of {len(block.series)} series are drawn."
    return chart


def _draw_series(chart: Chart, block: Lines, frame: _Frame, places: Sequence[float]) -> None:
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


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers from `low` or below to `high` or above, in about four steps."""
    raw = max((high - low) / 4 or abs(high), SMALLEST)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10, 20) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)]
    return ticks if ticks[-1] > ticks[0] else [low, low + (abs(low) or 1.0)]
