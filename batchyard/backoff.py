"""Back-off: the wait after the n-th failure in a row."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

_LAST_GROWTH = 64
"""Waits stop growing after this many attempts, so that the power does not overflow."""


@dataclass(frozen=True)
class Backoff:
    """Exponential back-off with jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015).

    Attributes:
        first: seconds after the first failure.
        growth: factor from one wait to the next.
        longest: most seconds of a wait, before jitter.
        jitter: each wait is multiplied by a random number from this range; (0, 1) is "full jitter".
    """

    first: float
    growth: float = 2.0
    longest: float = math.inf
    jitter: tuple[float, float] = (1.0, 1.0)

    def seconds(self, attempt: int) -> float:
        """Return the seconds to wait after failed attempt number `attempt`, counted from 1."""
        wait = self.first * self.growth ** min(attempt - 1, _LAST_GROWTH)
        return min(wait, self.longest) * random.uniform(*self.jitter)
