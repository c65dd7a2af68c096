"""Plots of a comparison as SVG files of their own: means and percentiles of variants, with intervals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from recipes.experiment.reports import headline
from recipes.experiment.tables import number

WIDTH = 640
ROW = 28
TOP = 44
CHARACTER = 7.2
"""Approximate width of a character."""
LABEL = 32
"""Most characters of a label."""
MOST_PLOTS = 12
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1a1a1a}.title{font-weight:600}.end{text-anchor:end}"
    ".middle{text-anchor:middle}line{stroke:#1a56a8;stroke-width:2}.rule{stroke:#ccc;stroke-width:1}"
    "circle,rect{fill:#1a56a8}@media(prefers-color-scheme:dark){text{fill:#eee}.rule{stroke:#555}"
    "line:not(.rule){stroke:#8ab4f8}circle,rect{fill:#8ab4f8}}"
)


@dataclass(frozen=True)
class Point:
    """A value in a row of its own, and its interval."""

    label: str
    value: float
    ends: Sequence[float] | None = None


def of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the plots by name: of first metrics, their differences from the baseline, and requests' seconds."""
    plots = {}
    for metric in headline(document)[:MOST_PLOTS]:
        entries = document["metrics"][metric]["variants"]
        name = re.sub(r"[^\w@.-]", "_", metric.replace("^", "-all-"))
        plots[name] = svg(metric, [Point(variant, each["mean"], each["interval"]) for variant, each in entries.items()])
        differences = list(_differences(entries))
        if differences:
            plots[f"{name}-difference"] = svg(f"{metric}, less {document['baseline']}", differences, zero=True)
    seconds = [
        Point(f"{name} {share}", variant["latency"][share])
        for name, variant in document["variants"].items()
        if variant["latency"]
        for share in ("p50", "p95", "p99")
    ]
    return plots | ({"seconds-of-requests": svg("Seconds of requests", seconds, zero=True)} if seconds else {})


def _differences(entries: Mapping[str, Any]) -> Iterator[Point]:
    for variant, entry in entries.items():
        difference = entry.get("difference") or {}
        if "mean" in difference:
            yield Point(f"{variant} (n = {difference['n']})", difference["mean"], difference["interval"])


def svg(title: str, points: Sequence[Point], *, zero: bool = False) -> str:
    """Return a row for each point: its label, a dot, a line over its interval, and its value.

    Args:
        zero: the axis has 0, with a rule.
    """
    reach = [value for point in points for value in (point.value, *(point.ends or ()))] + [0.0] * zero
    low, high = min(reach), max(reach)
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    labels = [point.label if len(point.label) <= LABEL else f"{point.label[: LABEL - 1]}…" for point in points]
    left = 24 + CHARACTER * max(map(len, labels), default=0)
    right = WIDTH - 24 - CHARACTER * 10
    bottom = TOP + ROW * len(points)

    def place(value: float) -> str:
        return f"{left + (right - left) * ((value - low) / (high - low)):.1f}"

    shapes = [f'<text class="title" x="12" y="24">{escape(title)}</text>']
    ends = [low, high] if not zero or 0 in (low, high) else [low, 0.0, high]
    for end in ends:
        shapes.append(f'<line class="rule" x1="{place(end)}" x2="{place(end)}" y1="{TOP - 8}" y2="{bottom}"/>')
        shapes.append(f'<text class="middle" x="{place(end)}" y="{bottom + 18}">{number(end)}</text>')
    for row, (label, point) in enumerate(zip(labels, points, strict=True)):
        y = TOP + ROW * (row + 0.5)
        shapes.append(f'<text class="end" x="{left - 12:.1f}" y="{y + 4:g}">{escape(label)}</text>')
        if point.ends is not None:
            first, last = (place(end) for end in point.ends)
            shapes.append(f'<line x1="{first}" x2="{last}" y1="{y:g}" y2="{y:g}"/>')
        shapes.append(f'<circle cx="{place(point.value)}" cy="{y:g}" r="4"/>')
        shapes.append(f'<text class="end" x="{WIDTH - 12}" y="{y + 4:g}">{number(point.value)}</text>')
    return drawing(title, shapes, bottom + 30)


def drawing(title: str, shapes: Sequence[str], height: float) -> str:
    """Return shapes as an SVG file of WIDTH, with the colours of a light or a dark page."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title, {chr(34): "&quot;"})}"><style>{STYLE}</style>{"".join(shapes)}</svg>\n'
    )
