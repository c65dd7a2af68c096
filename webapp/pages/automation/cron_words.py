"""Cron expressions in words, of the forms that people write. Of others nothing is said, rather than something wrong."""

from __future__ import annotations

from collections.abc import Sequence

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
MOST_TIMES = 6
"""So many times of a day are listed."""


def words(expression: str) -> str | None:
    """Return when a valid expression runs, such as `at 06:30, Monday to Friday`.

    None if it has no common form.
    """
    minute, hour, day, month, weekday = expression.upper().split()
    times, days = _times(minute, hour), _days(day, month, weekday)
    if times is None or days is None:
        return None
    if days:
        return f"{times}, {days}"
    return times if times.startswith("every") else f"every day {times}"


def _times(minute: str, hour: str) -> str | None:
    step, hours = _step(minute, 60), _numbers(hour)
    if step is not None:
        every = "every minute" if step == 1 else f"every {step} minutes"
        if hour == "*":
            return every
        if hours is None or not _adjacent(hours):
            return None
        return f"{every} from {hours[0]:02}:00 to {hours[-1]:02}:{60 - step:02}"
    minutes, hour_step = _numbers(minute), _step(hour, 24)
    if minutes is None:
        return None
    if hour_step is not None:
        every = "every hour" if hour_step == 1 else f"every {hour_step} hours"
        if minutes == [0]:
            return every
        return f"{every} at minute{'s' if len(minutes) > 1 else ''} {_listed(minutes)}"
    if hours is None:
        return None
    if len(minutes) == 1 and len(hours) > MOST_TIMES and _adjacent(hours):
        return f"every hour from {hours[0]:02}:{minutes[0]:02} to {hours[-1]:02}:{minutes[0]:02}"
    times = [f"{one:02}:{other:02}" for one in hours for other in minutes]
    return f"at {_listed(times)}" if len(times) <= MOST_TIMES else None


def _days(day: str, month: str, weekday: str) -> str | None:
    """Return the days in words, empty for every day."""
    months = None if month == "*" else _numbers(month, ("", *MONTHS))
    if (month != "*" and months is None) or (day != "*" and weekday != "*"):  # cron then runs on either
        return None
    names = _listed([MONTHS[number - 1] for number in months or ()])
    if day != "*":
        days = _numbers(day)
        if day != "L" and days is None:
            return None
        if months is not None and days is not None and len(months) == len(days) == 1:
            return f"on {days[0]} {names}"
        which = "last day" if days is None else _listed([_ordinal(number) for number in days])
        return f"on the {which} of {names or 'each month'}"
    if weekday == "*":
        return f"every day in {names}" if names else ""
    numbers = _numbers(weekday, ("Sunday", *DAYS))
    if numbers is None:
        return None
    weekdays = sorted({(number - 1) % 7 for number in numbers})
    if len(weekdays) == 7:
        return f"every day in {names}" if names else ""
    if len(weekdays) > 2 and _adjacent(weekdays):
        text = f"{DAYS[weekdays[0]]} to {DAYS[weekdays[-1]]}"
    else:
        text = f"on {_listed([f'{DAYS[number]}s' for number in weekdays])}"
    return f"{text} in {names}" if names else text


def _step(field: str, of: int) -> int | None:
    """Return n of `*/n`, and 1 of `*`.

    None for anything else, and for a step that does not divide the field's range.
    """
    if field == "*":
        return 1
    number = int(field[2:]) if field.startswith("*/") and field[2:].isdecimal() else 0
    return number if 0 < number < of and of % number == 0 else None


def _numbers(field: str, names: Sequence[str] = ()) -> list[int] | None:
    """Return the numbers of a list of numbers, names and ranges, rising; None for anything else."""
    short = [name[:3].upper() for name in names]
    numbers: set[int] = set()
    for part in field.split(","):
        ends = [
            int(end) if end.isdecimal() else short.index(end) if len(end) == 3 and end in short else None
            for end in part.split("-")
        ]
        first, last = ends[0], ends[-1]
        if first is None or last is None or len(ends) > 2 or last < first:
            return None
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def _adjacent(numbers: Sequence[int]) -> bool:
    return numbers[-1] - numbers[0] == len(numbers) - 1


def _ordinal(number: int) -> str:
    ending = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _listed(parts: Sequence[object]) -> str:
    *others, last = map(str, parts) if parts else [""]
    return f"{', '.join(others)} and {last}" if others else last
