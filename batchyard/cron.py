"""Times of cron expressions in a time zone. Clock changes are handled as in Debian's cron.

A fixed time that the clock skips runs right after the gap. A fixed time that the clock shows twice runs once. An
expression whose minute or hour is `*` or `*/n` follows the clock.
"""

import functools
import itertools
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from batchyard.errors import RequestError
from batchyard.wording import nearest, quoted

# The first step back of `last`.
_SPAN_SECONDS = 3600
_FIELDS = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, L or LW",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT",
}
_ATTRIBUTES = ("minutes", "hours", "days", "months", "weekdays")


@dataclass(frozen=True)
class Cron:
    """The times at which something recurs, in Unix seconds."""

    expression: str
    zone: tzinfo

    def after(self, start: int) -> Iterator[int]:
        """Yield the times after `start`, rising. They end where none comes for 50 years."""
        for date in CronSim(self.expression, datetime.fromtimestamp(start, self.zone)):
            # CronSim returns a fixed time in an hour that comes twice with its first pass, which may be over.
            if (time := int(date.timestamp())) > start:
                start = time
                yield time

    def next(self, start: int) -> int | None:
        """Return the first time after `start`, or None."""
        return next(self.after(start), None)

    def last(self, first: int, until: int, limit: int) -> list[int]:
        """Return the last times from `first` to `until`, rising, at most `limit` of them.

        It searches back from `until` in growing steps, so an early `first` costs nothing.
        """
        span = _SPAN_SECONDS
        while True:
            start = max(first, until - span)
            times = list(itertools.takewhile(lambda time: time <= until, self.after(start - 1)))
            if len(times) >= limit or start == first:
                return times[-limit:]
            span *= 4

    def local(self, time: int) -> datetime:
        """Return a time as a date and time of day in the zone."""
        return datetime.fromtimestamp(time, self.zone)


def parse(expression: str, timezone: str) -> Cron:
    """Parse a cron expression of five fields and the name of an IANA time zone.

    Raises RequestError: one of them is invalid, a step reaches no second value, or the expression has no time in the
    next 50 years.
    """
    fields = expression.split()
    if len(fields) != 5:
        raise _unusable("it has not five fields")
    for index, field in enumerate(fields):
        for term in field.split(","):
            _check_term(index, term)
    if timezone not in zones():
        close = nearest(timezone, zones())
        remedy = f"did you mean '{close}'?" if close else "name one of IANA's, such as 'Europe/Berlin' or 'UTC'."
        message = f"Invalid value for 'timezone': there is no {timezone[:64]!r}; {remedy}"
        raise RequestError(message, code="invalid_value", param="timezone")
    cron = Cron(expression, ZoneInfo(timezone))
    try:
        if cron.next(int(datetime.now(UTC).timestamp())) is None:
            raise _unusable("it names no day that ever comes")
    except (CronSimError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise _unusable(str(error)) from None
    return cron


def _check_term(index: int, term: str) -> None:
    """Raise RequestError for a term of a field that cannot be read, or whose step has no effect."""
    name, values = list(_FIELDS.items())[index]
    alone = ["*"] * 5
    alone[index] = term
    try:
        reached = getattr(CronSim(" ".join(alone), datetime.now(UTC)), _ATTRIBUTES[index])
    except (CronSimError, ValueError):  # ValueError: a number of thousands of digits
        reason = f"the {name} {quoted(term)} is neither a value of {values}, nor a range that rises, nor a step"
        raise _unusable(reason) from None
    if "/" not in term:
        return
    different = {value % 7 if isinstance(value, int) and index == 4 else value for value in reached}
    if len(different) == 1:
        (value,) = different
        raise _unusable(
            f"the step of the {name} {quoted(term)} reaches no second value, so it would run at {name} {value} alone; "
            f"write that, or a smaller step"
        )


def _unusable(reason: str) -> RequestError:
    return RequestError(
        f"Invalid value for 'cron': {reason}; write minute, hour, day of month, month and day of week, "
        "such as '30 6 * * MON-FRI'.",
        code="invalid_value",
        param="cron",
    )


@functools.cache
def zones() -> list[str]:
    return sorted(zoneinfo.available_timezones())
