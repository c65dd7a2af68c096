"""How numbers, times and sizes are written on the pages: Jinja filters."""

from __future__ import annotations

from datetime import UTC, datetime

from flask import Flask
from markupsafe import Markup

from batchyard import durations

NOTHING = "\N{EN DASH}"
"""What stands where nothing was measured yet."""


def count(number: float | None) -> str:
    """`12,345`"""
    return NOTHING if number is None else f"{number:,.0f}"


def rate(number: float | None) -> str:
    """A number of something a second, with as many digits as mean something: `0.25`, `7.3`, `1,204`."""
    if number is None:
        return NOTHING
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 1 else f"{number:.2g}"


def percent(share: float | None) -> str:
    """`93.1 %`; never 100 % before it is all."""
    if share is None:
        return NOTHING
    return "100 %" if share >= 1 else f"{min(share * 100, 99.9):.1f} %"


def size(number: float | None) -> str:
    """Bytes as `512 B`, `3.4 KiB`, `1.2 GiB`."""
    if number is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def duration(seconds: float | None) -> str:
    """`3 h 20 min`"""
    return NOTHING if seconds is None else durations.text(seconds)


def moment(at: float | None) -> str | Markup:
    """A time, in UTC, as an element that machines can read, too."""
    if at is None:
        return NOTHING
    time = datetime.fromtimestamp(at, UTC)
    shown = time.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}">{} UTC</time>').format(time.isoformat(timespec="seconds"), shown)


def short(text: str, most: int = 12) -> str:
    """The end of a long id or hash, which is what tells it from others."""
    return text if len(text) <= most else f"…{text[-most:]}"


FILTERS = (count, rate, percent, size, duration, moment, short)


def register(app: Flask) -> None:
    for function in FILTERS:
        app.jinja_env.filters[function.__name__] = function
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
