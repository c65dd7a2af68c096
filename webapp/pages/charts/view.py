"""The charts of a job's view: its blocks (batchyard.recipes.blocks), each drawn or with why it cannot be."""

from typing import Any

from batchyard.recipes import blocks
from batchyard.recipes.blocks import Histogram, Lines, Matrix, Table
from webapp.pages.charts import bars, lines
from webapp.pages.charts.shapes import Chart, with_values

MAX_BLOCKS = 32


def charts_of(view: Any) -> list[Chart]:
    """Return the charts of a view. A block that is none is one with a `problem`."""
    return [_chart(block) for block in view[:MAX_BLOCKS]] if isinstance(view, list) else []


def _chart(block: Any) -> Chart:
    try:
        parsed = blocks.parse(block)
    except ValueError as error:
        name = block.get("title") if isinstance(block, dict) else None
        return Chart(str(name or "A block of the view"), problem=f"cannot be drawn: {error}")
    if isinstance(parsed, Table):
        return with_values(Chart(parsed.title), parsed.columns, parsed.rows)
    if isinstance(parsed, Matrix):
        return bars.matrix(parsed)
    if isinstance(parsed, Lines):
        return lines.over_numbers(parsed)
    return bars.histogram(parsed) if isinstance(parsed, Histogram) else bars.bars(parsed)
