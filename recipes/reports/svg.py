"""Plots as SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH = 640
TOP = 44
CHARACTER = 7.2
"""Approximate width of a character."""
LABEL = 32
"""Most characters of a label."""
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1a1a1a}.title{font-weight:600}.end{text-anchor:end}"
    ".middle{text-anchor:middle}line{stroke:#1a56a8;stroke-width:2}.rule{stroke:#ccc;stroke-width:1}"
    "circle,rect{fill:#1a56a8}@media(prefers-color-scheme:dark){text{fill:#eee}.rule{stroke:#555}"
    "line:not(.rule){stroke:#8ab4f8}circle,rect{fill:#8ab4f8}}"
)


def shortened(label: str) -> str:
    """Return a label of LABEL characters at the most."""
    return label if len(label) <= LABEL else f"{label[: LABEL - 1]}…"


def drawing(title: str, shapes: Sequence[str], height: float) -> str:
    """Return shapes and a title as an SVG file, in the page's light or dark colours."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title, {chr(34): "&quot;"})}"><style>{STYLE}</style>'
        f'<text class="title" x="12" y="24">{escape(title)}</text>{"".join(shapes)}</svg>\n'
    )
