"""Charts of bars, of columns and of matrices: a box a value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from batchyard.recipes.blocks import Bars, Histogram, Matrix
from webapp.pages.charts.shapes import CHARACTER, WIDTH, Box, Chart, ChartLine, Text, short, with_values, within
from webapp.pages.formats import figure

ROW = 24.0
MAX_BARS = 64
MAX_SIDE = 24


def _labelled(block: Bars | Histogram) -> Chart:
    chart = with_values(Chart(block.title), ["", "value"], list(zip(block.labels, block.values, strict=True)))
    if len(block.labels) > MAX_BARS:
        chart.more = f"The first {MAX_BARS} of {len(block.labels):,} are drawn."
    return chart


def bars(block: Bars) -> Chart:
    """Draw a row a label, its bar from zero."""
    chart = _labelled(block)
    labels, values = [short(label) for label in block.labels[:MAX_BARS]], block.values[:MAX_BARS]
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


def histogram(block: Histogram) -> Chart:
    """Draw a column a label, with its value on top."""
    chart = _labelled(block)
    labels, values = [short(label) for label in block.labels[:MAX_BARS]], block.values[:MAX_BARS]
    return _columns(chart, labels, [[max(value or 0, 0) for value in values]], [figure(value) for value in values])


def stacked(title: str, labels: Sequence[str], series: Mapping[str, Sequence[float]]) -> Chart:
    """Draw a column a label, with a part for each series, the first one at the bottom."""
    chart = with_values(Chart(title), ["", *series], list(zip(labels, *series.values(), strict=True)))
    chart.lines = [ChartLine(number, name, "", []) for number, name in enumerate(series)]
    return _columns(chart, labels, [*series.values()])


def _columns(chart: Chart, labels: Sequence[str], series: Sequence[Sequence[float]], tops: Sequence[str] = ()) -> Chart:
    """Draw columns of parts. `tops`: what stands above each if there is room; the highest always has its value."""
    if not labels:
        return chart
    top, bottom, step = 18.0, 150.0, WIDTH / len(labels)
    totals = [sum(parts) for parts in zip(*series, strict=True)]
    tops = tops or [figure(total) for total in totals]
    high = max(totals) or 1.0
    # Only each n-th label has room.
    every = max(1, math.ceil(CHARACTER * (1 + max(map(len, labels))) / step))
    says = step >= CHARACTER * max(map(len, tops))
    for index, (label, total) in enumerate(zip(labels, totals, strict=True)):
        x, y = index * step, bottom
        for number, values in enumerate(series):
            size = (bottom - top) * (values[index] / high)
            y -= size
            if size:
                chart.boxes.append(Box(x + step * 0.1, y, step * 0.8, size, series=number if chart.lines else None))
        if says or total == high:
            chart.texts.append(replace(within(x + step / 2, y - 5, tops[index]), kind="value"))
        if index % every == 0:
            chart.texts.append(within(x + step / 2, bottom + 16, label))
    chart.rules, chart.height = [bottom], 172.0
    return chart


def matrix(block: Matrix) -> Chart:
    """Draw a cell a value, the darker the higher."""
    rows = [[name, *values] for name, values in zip(block.rows, block.values, strict=True)]
    chart = with_values(Chart(block.title), ["", *block.columns], rows)
    if not rows or not block.columns or max(len(rows), len(block.columns)) > MAX_SIDE:
        return chart
    names, columns = [short(name) for name in block.rows], [short(name) for name in block.columns]
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
