"""Durations in the form `<n>s`, `<n>m`, `<n>h` or `<n>d`."""

import re

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> int:
    """Return the seconds of a duration such as `24h`. Raises ValueError for other text and for zero."""
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration: write a whole number and s, m, h or d, such as '24h'")
    return int(match[1]) * _UNITS[match[2]]


def text(seconds: float) -> str:
    """Format seconds in the two largest units: `45 s`, `12 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    remaining = round(max(0.0, seconds))
    parts = []
    for name, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, remaining = divmod(remaining, size)
        if number:
            parts.append(f"{number} {name}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def words(seconds: int) -> str:
    """Write out seconds in the largest unit that leaves no rest: `10 minutes`, `7 days`, `90 minutes`."""
    for name, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds % size == 0 and seconds >= size:
            number = seconds // size
            return f"{number} {name}{'' if number == 1 else 's'}"
    return f"{seconds} seconds"


def brief(seconds: float) -> str:
    """Format the seconds of one request with two digits: `85 ms`, `1.2 s`, `3 min 20 s`."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.2g} ms"
    return f"{seconds:.2g} s" if seconds < 9.95 else text(seconds)
