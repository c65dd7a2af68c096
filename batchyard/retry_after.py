"""The Retry-After header (RFC 9110, section 10.2.3): a number of seconds, or an HTTP date."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"\d{1,18}(\.\d+)?", re.ASCII)  # the RFC has whole seconds; some servers send fractions


def seconds(header: str | None, now: float) -> float | None:
    """Return the seconds to wait from `now` (Unix time); None if the header is missing or invalid."""
    if header is None:
        return None
    if _SECONDS.fullmatch(header.strip()):
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now)
    except (ValueError, OverflowError):
        return None
