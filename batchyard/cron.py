"""Times as cron expressions give them, in a time zone; on days when the clock changes, as Debian's cron does.

A fixed time that the clock skips runs right after the gap; one that comes twice runs once. An expression whose minute
or hour is a `*` or `*/n` goes by what the clock shows.
"""

from __future__ import annotations

import functools
import itertools
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from batchyard.errors import RequestError
from batchyard.wording import nearest

# How far back `last` looks first for times that are frequent.
_SPAN_SECONDS = 3600


@dataclass(frozen=True)
class Cron:
    """When something recurs. Times are Unix seconds."""

    expression: str
    zone: tzinfo

    def after(self, moment: int) -> Iterator[int]:
        """The times after `moment`, rising; they end where none comes for 50 years."""
        for found in CronSim(self.expression, datetime.fromtimestamp(moment, self.zone)):
            # In the hour that comes twice, a fixed time is found again in its first pass, which may be over.
            if (time := int(found.timestamp())) > moment:
                moment = time
                yield time

    def next(self, moment: int) -> int | None:
        """The first time after `moment`."""
        return next(self.after(moment), None)

    def last(self, first: int, until: int, most: int) -> list[int]:
        """The last times from `first` to `until`, at most `most` of them, rising.

        Takes no longer where `first` is long ago: the way back is felt for in growing steps.
        """
        span = _SPAN_SECONDS
        while True:
            start = max(first, until - span)
            found = list(itertools.takewhile(lambda time: time <= until, self.after(start - 1)))
            if len(found) >= most or start == first:
                return found[-most:]
            span *= 4

    def local(self, moment: int) -> datetime:
        return datetime.fromtimestamp(moment, self.zone)


def parse(expression: str, timezone: str) -> Cron:
    """Raises RequestError for what is no cron expression of five fields, never comes, or is no IANA time zone."""
    if len(expression.split()) != 5:
        raise _unusable("it has not five fields")
    cron = Cron(expression, _zone(timezone))
    try:
        if cron.next(int(datetime.now(UTC).timestamp())) is None:
            raise _unusable("it names no day that ever comes")
    except (CronSimError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise _unusable(str(error)) from None
    return cron


def _unusable(reason: str) -> RequestError:
    return RequestError(
        f"Invalid value for 'cron': {reason}; write minute, hour, day of month, month and day of week, "
        "such as '30 6 * * MON-FRI'.",
        code="invalid_value",
        param="cron",
    )


def _zone(name: str) -> tzinfo:
    if name not in zones():
        raise RequestError(
            f"Invalid value for 'timezone': there is no {name[:64]!r}; did you mean '{nearest(name, zones())}'?",
            code="invalid_value",
            param="timezone",
        )
    return ZoneInfo(name)


@functools.cache
def zones() -> list[str]:
    """The names of all time zones."""
    return sorted(zoneinfo.available_timezones())
