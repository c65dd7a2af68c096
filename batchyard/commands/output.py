"""How commands show things: text or tables for people, JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


def say(document: Mapping[str, Any] | Sequence[Any], text: str, as_json: bool) -> None:
    """`document` for scripts, `text` for people."""
    click.echo(json.dumps(document, default=str) if as_json else text)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Rows under column names, never cut, so that ids can be copied; what is None shows as a dash."""
    cells = [list(columns), *(["-" if cell is None else str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(columns))]
    for number, line in enumerate(cells):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        if text:
            click.echo(click.style(text, bold=True) if number == 0 else text)


def when(seconds: int | None) -> str | None:
    """Unix seconds as people read them."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
