"""The commands' output: text or tables for people, JSON for scripts."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

# Characters that command a terminal: control characters, and those that change the direction of writing.
_COMMANDING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Replace the characters that command a terminal in text that others may have written."""
    return _COMMANDING.sub("\ufffd", text)


class Painted(str):
    """Text that may have colours, and no other commanding characters."""


def painted(text: str, colour: str | None) -> str:
    """Return text in a colour where standard output is a terminal, unless the variable NO_COLOR is set."""
    if colour is None or not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return Painted(click.style(plain(text), fg=colour))


def complain(message: str) -> None:
    click.echo("batchyard: " + " ".join(plain(message).split()), err=True)


def note(text: str) -> None:
    """Print a hint for people on standard error; nothing where that is no terminal."""
    if sys.stderr.isatty():
        click.echo(plain(text), err=True)


def say(document: Mapping[str, Any] | Sequence[Any], text: str, as_json: bool) -> None:
    """Print `document` as JSON for scripts, or `text` for people."""
    click.echo(json.dumps(document, default=str) if as_json else text if isinstance(text, Painted) else plain(text))


def lines_of(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Painted:
    """Return a table with uncut cells, so that ids can be copied; None is a dash."""
    cells = [
        [cell if isinstance(cell, Painted) else plain("-" if cell is None else str(cell)) for cell in row]
        for row in (columns, *rows)
    ]
    widths = [max(_width(line[column]) for line in cells) for column in range(len(columns))]
    lines = [
        "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    return Painted("\n".join(line for line in lines if line))


def _width(cell: str) -> int:
    return len(click.unstyle(cell))


def when(seconds: int | None, timezone: str = "UTC") -> str | None:
    """Unix seconds as date and time in a time zone, by default UTC."""
    if seconds is None:
        return None
    if timezone == "UTC":
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    from zoneinfo import ZoneInfo

    return datetime.fromtimestamp(seconds, ZoneInfo(timezone)).strftime("%Y-%m-%d %H:%M:%S %Z")
