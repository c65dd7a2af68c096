"""Blocks, numbers and texts of reports, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from batchyard.recipes import Table

NOTHING = "-"


def number(value: float | None) -> str:
    """Format a value with four digits, whole numbers as they are."""
    if value is None:
        return NOTHING
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def interval(ends: Sequence[float] | None) -> str:
    """Format the ends of an interval."""
    return NOTHING if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def section(block: Table, title: str = "", *, remark: str = "") -> list[str]:
    """Return the lines of a table below its title or another one, with a remark between them."""
    return [f"## {title or block.title}", "", *([remark, ""] if remark else []), *table(block)]


def table(block: Table) -> list[str]:
    """Return the lines of a table, and an empty one."""
    lines: list[Sequence[object]] = [block.columns, ["---"] * len(block.columns), *block.rows]
    return ["| " + " | ".join(_cell(value) for value in line) + " |" for line in lines] + [""]


def _cell(value: object) -> str:
    return escaped(NOTHING if value is None or value == "" else str(value))


def escaped(text: str) -> str:
    """Return a text that says the same in a line or a cell of Markdown."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
