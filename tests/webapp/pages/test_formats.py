"""Numbers, times and sizes as pages show them: no digit without meaning, and a dash for what nobody has measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from webapp.pages import formats
from webapp.pages.formats import NOTHING


@pytest.mark.parametrize(
    ("function", "value", "shown"),
    [
        (formats.count, 12345.0, "12,345"),
        (formats.count, 0, "0"),
        (formats.rate, 0.254, "0.25"),
        (formats.rate, 7.31, "7.3"),
        (formats.rate, 1204.4, "1,204"),
        (formats.percent, 0.9312, "93.1 %"),
        (formats.percent, 0.99999, "99.9 %"),
        (formats.percent, 1.0, "100 %"),
        (formats.percent, 0.0, "0.0 %"),
        (formats.figure, 0.453123, "0.4531"),
        (formats.figure, 3204.4, "3,204"),
        (formats.figure, 1204567, "1,204,567"),
        (formats.figure, True, "true"),
        (formats.figure, "as it is", "as it is"),
        (formats.figure, ["a", "ü"], '["a", "ü"]'),
        (formats.size, 512, "512 B"),
        (formats.size, 1024, "1.0 KiB"),
        (formats.size, 3.4 * 1024**2, "3.4 MiB"),
        (formats.size, 5000 * 1024**3, "5000.0 GiB"),
        (formats.money, {"amount": "0.0012", "currency": "EUR"}, "0.0012 EUR"),
        (formats.money, {"amount": "1204.5", "currency": "EUR"}, "1,204.50 EUR"),
        (formats.duration, 12000, "3 h 20 min"),
        (formats.brief, 0.085, "85 ms"),
        (formats.short, "batch_0123456789abcdef", "…456789abcdef"),
        (formats.short, "short", "short"),
    ],
)
def test_a_value_is_shown_for_people(function: Callable[[object], str], value: object, shown: str) -> None:
    assert function(value) == shown


@pytest.mark.parametrize(
    "function",
    ["count", "rate", "percent", "figure", "size", "duration", "brief", "timestamp", "ago"],
)
def test_what_was_not_measured_is_a_dash(function: str) -> None:
    assert getattr(formats, function)(None) == NOTHING


def test_a_time_is_read_by_machines_and_by_people() -> None:
    assert formats.timestamp(0) == '<time datetime="1970-01-01T00:00:00Z">1970-01-01 00:00:00 UTC</time>'
    past = str(formats.ago(time.time() - 7300))
    assert past.endswith(">2 h ago</time>") and 'title="2' in past
