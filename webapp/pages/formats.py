"""Jinja filters that format numbers, times and sizes."""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial

from flask import Flask
from markupsafe import Markup

from batchyard import durations, tariffs, wording
from webapp.wire.batches import Extension
from webapp.wire.jobs import JobExtension
from webapp.wire.usage import Money
from webapp.wire.work import Cost

NOTHING = "\N{EN DASH}"
"""Shown for a value that was not measured yet."""


def count(number: float | None) -> str:
    """Format a number as `12,345`."""
    return NOTHING if number is None else f"{number:,.0f}"


def rate(number: float | None) -> str:
    """Format a rate per second without meaningless digits: `0.25`, `7.3`, `1,204`."""
    if number is None:
        return NOTHING
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 1 else f"{number:.2g}"


def percent(share: float | None) -> str:
    """Format a share of one as `93.1 %`. It is `100 %` only at 1."""
    if share is None:
        return NOTHING
    return "100 %" if share >= 1 else f"{min(share * 100, 99.9):.1f} %"


def figure(value: object) -> str:
    """Format a measured value with four digits: `0.4531`, `12.5`, `3,204`; a text stays as it is."""
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def size(number: float | None) -> str:
    """Format bytes as `512 B`, `3.4 KiB`, `1.2 GiB`."""
    if number is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def money(cost: Mapping[str, str] | Cost | Money) -> str:
    """Format what has an amount and a currency as `12.50 EUR`, a small one as `0.0012 EUR`."""
    fields = cost if isinstance(cost, Mapping) else vars(cost)
    return tariffs.text(Fraction(fields["amount"]), fields["currency"])


def duration(seconds: float | None) -> str:
    """Format seconds as `3 h 20 min`."""
    return NOTHING if seconds is None else durations.text(seconds)


def brief(seconds: float | None) -> str:
    """Format the seconds of a request as `85 ms`, `1.2 s`."""
    return NOTHING if seconds is None else durations.brief(seconds)


def timestamp(at: float | None) -> str | Markup:
    """Format a Unix time in UTC, as an HTML `time` element."""
    if at is None:
        return NOTHING
    return Markup('<time datetime="{:%Y-%m-%dT%H:%M:%SZ}">{}</time>').format(datetime.fromtimestamp(at, UTC), _utc(at))


def ago(at: float | None) -> str | Markup:
    """Format a past Unix time as `3 h ago`, in an HTML `time` element that says the exact time in its title."""
    if at is None:
        return NOTHING
    age = " ".join(durations.text(time.time() - at).split()[:2])
    element = Markup('<time datetime="{:%Y-%m-%dT%H:%M:%SZ}" title="{}" data-ago>{} ago</time>')
    return element.format(datetime.fromtimestamp(at, UTC), _utc(at), age)


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def short(text: str, length: int = 12) -> str:
    """Shorten a long id or hash to its end, which differs most between ids."""
    return text if len(text) <= length else f"…{text[-length:]}"


def flaws(ours: Extension | JobExtension) -> str:
    return wording.flaws(vars(ours))


FILTERS = (
    *(count, rate, figure, percent, size, money, duration, brief, timestamp, ago, short),
    *(wording.live_share, flaws),
)


def register(app: Flask) -> None:
    app.jinja_env.filters |= {function.__name__: function for function in FILTERS}
    app.jinja_env.filters["shown_json"] = partial(json.dumps, ensure_ascii=False, indent=1)
    app.jinja_env.filters["after_death"] = wording.AFTER_DEATH.__getitem__
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
