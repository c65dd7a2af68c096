"""Months of UTC, and days as they are stored: counted since 1970."""

from __future__ import annotations

import re
import time
from datetime import date, timedelta
from typing import NamedTuple

from batchyard.errors import RequestError

DAY = 86400
_EPOCH = date(1970, 1, 1)
_FORM = re.compile(r"([0-9]{4})-([0-9]{2})")


def day_of(at: float) -> int:
    """Return the day of a Unix time."""
    return int(at // DAY)


def day_text(day: int) -> str:
    """Return a day as `2026-11-23`."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def day_of_text(text: str) -> int:
    """Return the day of a text such as `2026-11-23`. Raises ValueError."""
    return (date.fromisoformat(text) - _EPOCH).days


class Month(NamedTuple):
    year: int
    number: int

    @classmethod
    def of(cls, at: float | None = None) -> Month:
        """Return the month of a Unix time, by default of now."""
        day = time.gmtime(time.time() if at is None else at)
        return cls(day.tm_year, day.tm_mon)

    @classmethod
    def parse(cls, text: str) -> Month:
        """Return the month of a text such as `2026-11`. Raises RequestError."""
        match = _FORM.fullmatch(text)
        if match is None or not 1 <= int(match[2]) <= 12 or not 1970 <= int(match[1]) <= 9998:
            raise RequestError("Write a month as 2026-11.", code="invalid_value", param="month")
        return cls(int(match[1]), int(match[2]))

    @property
    def first(self) -> int:
        """Its first day."""
        return (date(self.year, self.number, 1) - _EPOCH).days

    @property
    def end(self) -> int:
        """The first day after it."""
        return self.next.first

    @property
    def next(self) -> Month:
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def previous(self) -> Month:
        return Month(self.year - (self.number == 1), (self.number - 2) % 12 + 1)

    def __str__(self) -> str:
        return f"{self.year}-{self.number:02d}"
