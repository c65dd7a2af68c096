"""Months and days are those of UTC."""

from __future__ import annotations

import pytest

from batchyard.errors import RequestError
from store.accounting.months import DAY, Month, day_of, day_text


@pytest.mark.parametrize(
    ("at", "month", "day"),
    [
        (0, "1970-01", "1970-01-01"),
        (1767225599.9, "2025-12", "2025-12-31"),  # the last second of the year
        (1767225600, "2026-01", "2026-01-01"),
        (1709164800, "2024-02", "2024-02-29"),
    ],
)
def test_a_time_belongs_to_its_day_and_month(at: float, month: str, day: str) -> None:
    assert str(Month.of(at)) == month
    assert day_text(day_of(at)) == day
    assert Month.of(at).first <= day_of(at) < Month.of(at).end


@pytest.mark.parametrize(("month", "days"), [("2026-11", 30), ("2026-12", 31), ("2024-02", 29), ("2026-02", 28)])
def test_a_month_ends_where_the_next_begins(month: str, days: int) -> None:
    parsed = Month.parse(month)
    assert parsed.end - parsed.first == days
    assert parsed.next.first == parsed.end and parsed.next.previous == parsed
    assert str(Month.of(parsed.first * DAY)) == month


@pytest.mark.parametrize(
    "text", ["", "2026-13", "2026-00", "1969-12", "9999-01", "2026-1", "2026-11-01", " 2026-11", "202\u0666-11"]
)
def test_what_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"Write a month as 2026-11\.") as refused:
        Month.parse(text)
    assert refused.value.param == "month"
