"""How recipes write their reports: tables as Markdown and CSV, plots as SVG files."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from batchyard import json_lines
from batchyard.recipes import Histogram, Messages, Results, Table

NOTHING = "-"
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


def write(results: Results, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        with results.create(name) as file:
            file.write(text.encode())


def write_lines(results: Results, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    with results.create(name) as file:
        file.writelines(json_lines.line(row) for row in rows)


def json_text(value: Any) -> str:
    """Return a value as a file of JSON that people read."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a CSV file with a line of names and a line for each row, with all digits."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    return file.getvalue()


def preference(prompt: Messages, samples: Sequence[Mapping[str, Any]], by: str) -> dict[str, Any] | None:
    """Return the first best and the first worst sample, as TRL reads a preference; None if all are alike."""
    values = [sample[by] for sample in samples]
    if len(set(values)) < 2:
        return None
    ends = samples[values.index(max(values))], samples[values.index(min(values))]
    chosen, rejected = ([{"role": "assistant", "content": sample["text"]}] for sample in ends)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def as_text(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a text as it is, another value as JSON; `default` makes a value of what is none of JSON's."""
    return value if isinstance(value, str) else json_lines.dumps(value, default).decode()


def number(value: float | None) -> str:
    """Format a value with four digits, whole numbers as they are."""
    if value is None:
        return NOTHING
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def interval(ends: Sequence[float] | None) -> str:
    return NOTHING if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def histogram(title: str, values: NDArray[np.float64], bins: int, ends: tuple[float, float] | None = None) -> Histogram:
    """Return how many values are in each of some ranges of one width."""
    counts, edges = np.histogram(values, bins=bins, range=ends)
    labels = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    return Histogram(title=title, labels=labels, values=counts.tolist())


def section(block: Table, title: str = "", *, remark: str = "") -> list[str]:
    """Return the lines of a table below its title or another one, with a remark between them."""
    return [f"## {title or block.title}", "", *([remark, ""] if remark else []), *table(block)]


def table(block: Table) -> list[str]:
    """Return the lines of a table, and an empty one."""
    lines: list[Sequence[object]] = [block.columns, ["---"] * len(block.columns), *block.rows]
    texts = ([escaped(NOTHING if value in (None, "") else str(value)) for value in line] for line in lines)
    return ["| " + " | ".join(line) + " |" for line in texts] + [""]


def escaped(text: str) -> str:
    """Return a text that says the same in a line or a cell of Markdown."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


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
