"""Waits before a next attempt: after the n-th failure in a row, and as a server's Retry-After says."""

import math
import random
import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

_LAST_GROWTH = 64
"""Waits stop growing after this many attempts, so that the power does not overflow."""
_SECONDS = re.compile(r"\d{1,18}(\.\d+)?", re.ASCII)  # the RFC has whole seconds; some servers send fractions


@dataclass(frozen=True)
class Backoff:
    """Exponential back-off with jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015)."""

    first: float  # seconds after the first failure
    growth: float = 2.0  # factor from one wait to the next
    longest: float = math.inf  # most seconds of a wait, before jitter
    # Each wait is multiplied by a random number from this range; (0, 1) is "full jitter"
    jitter: tuple[float, float] = (1.0, 1.0)

    def seconds(self, attempt: int) -> float:
        """Return the seconds to wait after failed attempt number `attempt`, counted from 1."""
        wait = self.first * self.growth ** min(attempt - 1, _LAST_GROWTH)
        return min(wait, self.longest) * random.uniform(*self.jitter)


def retry_after(header: str | None, now: float) -> float | None:
    """Return the seconds that Retry-After has one wait from `now` (Unix time); None if it is missing or invalid.

    The header is a number of seconds, or an HTTP date (RFC 9110, section 10.2.3).
    """
    if header is None:
        return None
    if _SECONDS.fullmatch(header.strip()):
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now)
    except (ValueError, OverflowError):
        return None
