"""Plots of a tune as SVG: throughput over p95, and a heat map of two dimensions."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape

from batchyard.recipes import Matrix
from recipes.reports import CHARACTER, TOP, WIDTH, drawing, number, shortened
from recipes.tune import report

LEFT = 84.0
RIGHT = WIDTH - 24.0
BOTTOM = 340.0
CELL = 32.0
LINE = 14.0
"""Height of a line of text."""


def of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the plots by name, without `.svg`. One that has nothing to show is missing."""
    plots = {}
    points = [row for row in document["cells"] if row["medians"] and row["medians"]["p95"] and row["medians"]["tokens"]]
    if points:
        plots["throughput"] = _throughput(points, document["recommendation"]["cell"])
    if heat := report.heat_map(document):
        plots["heat-map"] = _heat_map(heat)
    return plots


def _throughput(rows: Sequence[Mapping[str, Any]], recommended: str | None) -> str:
    """Return a dot for each cell, tokens/s over p95, and the line of unbeaten ones.

    Both axes begin at 0. The recommended cell has a larger dot and a bold name.
    """
    most_x = max(row["medians"]["p95"] for row in rows)
    most_y = max(row["medians"]["tokens"] for row in rows)

    def place(row: Mapping[str, Any]) -> tuple[str, str]:
        medians = row["medians"]
        x = LEFT + (RIGHT - LEFT) * medians["p95"] / most_x
        return f"{x:.1f}", f"{BOTTOM - (BOTTOM - TOP) * medians['tokens'] / most_y:.1f}"

    shapes = []
    for share in (0.0, 0.5, 1.0):
        right, up = LEFT + (RIGHT - LEFT) * share, BOTTOM - (BOTTOM - TOP) * share
        shapes.append(f'<line class="rule" x1="{LEFT:g}" x2="{RIGHT:g}" y1="{up:g}" y2="{up:g}"/>')
        shapes.append(f'<text class="end" x="{LEFT - 8:g}" y="{up + 4:g}">{number(most_y * share)}</text>')
        anchor = "end" if share == 1 else "middle"
        shapes.append(f'<text class="{anchor}" x="{right:g}" y="{BOTTOM + 20:g}">{number(most_x * share)}</text>')
    front = sorted((row for row in rows if row["pareto"]), key=lambda row: row["medians"]["p95"])
    for one, other in pairwise(front):
        (x1, y1), (x2, y2) = place(one), place(other)
        shapes.append(f'<line x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>')
    taken: list[tuple[float, float, float]] = []
    for row in sorted(rows, key=lambda row: (row["cell"]["name"] != recommended, not row["pareto"])):
        x, y = place(row)
        name = escape(row["cell"]["name"])
        chosen = row["cell"]["name"] == recommended
        opacity = "" if row["pareto"] else ' fill-opacity="0.4"'
        shapes.append(f'<circle cx="{x}" cy="{y}" r="{7 if chosen else 4}"{opacity}><title>{name}</title></circle>')
        if row["pareto"] or chosen:
            shapes.append(_label(row["cell"]["name"], float(x), float(y), "title" if chosen else "", taken))
    return drawing("Tokens/s over p95 in seconds", shapes, BOTTOM + 34)


def _label(name: str, x: float, y: float, kind: str, taken: list[tuple[float, float, float]]) -> str:
    """Return a name beside its dot, on the first side on which it covers no other; empty without such a side."""
    text = shortened(name)
    width = CHARACTER * len(text)
    for left, line in ((x - 8 - width, y - 6), (x + 8, y + 14), (x + 8, y - 6), (x - 8 - width, y + 14)):
        right = left + width
        covers = any(left < end and start < right and abs(line - base) < LINE for start, end, base in taken)
        if not covers and left >= 0 and right <= WIDTH:
            taken.append((left, right, line))
            return f'<text class="{kind}" x="{left:.1f}" y="{line:.1f}">{escape(text)}</text>'
    return ""


def _heat_map(block: Matrix) -> str:
    """Return a box for each value, the darker the higher."""
    values = [value for row in block.values for value in row if value is not None]
    low, high = min(values), max(values)
    left = 24 + CHARACTER * max(map(len, block.rows))
    step = (WIDTH - 12 - left) / len(block.columns)
    shapes = []
    for index, name in enumerate(block.columns):
        shapes.append(f'<text class="middle" x="{left + (index + 0.5) * step:.1f}" y="{TOP + 8}">{escape(name)}</text>')
    for index, (name, row) in enumerate(zip(block.rows, block.values, strict=True)):
        y = TOP + 18 + CELL * index
        shapes.append(f'<text class="end" x="{left - 10:.1f}" y="{y + CELL / 2 + 4:g}">{escape(name)}</text>')
        for column, value in enumerate(row):
            x = left + column * step
            if value is not None:
                shade = 0.08 + 0.5 * ((value - low) / (high - low) if high > low else 0.5)
                size = f'width="{step - 2:.1f}" height="{CELL - 2:g}"'
                shapes.append(f'<rect x="{x:.1f}" y="{y:g}" {size} fill-opacity="{shade:.3f}"/>')
            at = f'x="{x + step / 2:.1f}" y="{y + CELL / 2 + 4:g}"'
            shapes.append(f'<text class="middle" {at}>{number(value)}</text>')
    return drawing(block.title, shapes, TOP + 30 + CELL * len(block.rows))
