"""Plots of a comparison as SVG files: means and percentiles of variants, with intervals."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from xml.sax.saxutils import escape

from recipes.experiment.reports import headline
from recipes.reports import CHARACTER, TOP, WIDTH, drawing, number, shortened

ROW = 28
MOST_PLOTS = 12
Point: TypeAlias = tuple[str, float, Sequence[float] | None]
"""A row of a plot: its label, its value, and the ends of its interval."""


def of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the plots by name: of first metrics, their differences from the baseline, and requests' seconds."""
    plots = {}
    for metric in headline(document)[:MOST_PLOTS]:
        entries = document["metrics"][metric]["variants"]
        name = re.sub(r"[^\w@.-]", "_", metric.replace("^", "-all-"))
        plots[name] = svg(metric, [(variant, each["mean"], each["interval"]) for variant, each in entries.items()])
        compared = {variant: entry.get("difference") or {} for variant, entry in entries.items()}
        differences = [
            (f"{variant} (n = {difference['n']})", difference["mean"], difference["interval"])
            for variant, difference in compared.items()
            if "mean" in difference
        ]
        if differences:
            plots[f"{name}-difference"] = svg(f"{metric}, less {document['baseline']}", differences, zero=True)
    seconds = [
        (f"{name} {share}", variant["latency"][share], None)
        for name, variant in document["variants"].items()
        if variant["latency"]
        for share in ("p50", "p95", "p99")
    ]
    return plots | ({"seconds-of-requests": svg("Seconds of requests", seconds, zero=True)} if seconds else {})


def svg(title: str, points: Sequence[Point], *, zero: bool = False) -> str:
    """Return a row for each point: label, dot, interval and value; with `zero` on an axis that has 0."""
    reach = [value for _, at, ends in points for value in (at, *(ends or ()))] + [0.0] * zero
    low, high = min(reach), max(reach)
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    labels = [shortened(label) for label, _, _ in points]
    left = 24 + CHARACTER * max(map(len, labels), default=0)
    right = WIDTH - 24 - CHARACTER * 10
    bottom = TOP + ROW * len(points)

    def place(value: float) -> str:
        return f"{left + (right - left) * ((value - low) / (high - low)):.1f}"

    shapes = []
    ends = [low, high] if not zero or 0 in (low, high) else [low, 0.0, high]
    for end in ends:
        shapes.append(f'<line class="rule" x1="{place(end)}" x2="{place(end)}" y1="{TOP - 8}" y2="{bottom}"/>')
        shapes.append(f'<text class="middle" x="{place(end)}" y="{bottom + 18}">{number(end)}</text>')
    for row, (label, (_, value, interval)) in enumerate(zip(labels, points, strict=True)):
        y = TOP + ROW * (row + 0.5)
        shapes.append(f'<text class="end" x="{left - 12:.1f}" y="{y + 4:g}">{escape(label)}</text>')
        if interval is not None:
            first, last = map(place, interval)
            shapes.append(f'<line x1="{first}" x2="{last}" y1="{y:g}" y2="{y:g}"/>')
        shapes.append(f'<circle cx="{place(value)}" cy="{y:g}" r="4"/>')
        shapes.append(f'<text class="end" x="{WIDTH - 12}" y="{y + 4:g}">{number(value)}</text>')
    return drawing(title, shapes, bottom + 30)
