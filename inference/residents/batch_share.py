"""How many requests of batches an engine may hold beside live ones: a pure policy, to which times are passed in.

Without live traffic batches have the whole engine. With it they leave the places free that live requests have needed
lately, and two limits follow what live requests wait for: they fall by a share when these wait longer than their
targets, and rise by a step when they do not (as TCP's congestion control does). The first is how many batch requests
begin at a time, for their prompts hold up every token of the others; the second, when that is one, how many there are.
"""

import math
from collections import deque
from collections.abc import Callable

QUIET_SECONDS = 10.0
"""Without a live request for this long there is no live traffic."""
PEAK_SECONDS = 2.0
"""How long the most places that live requests had stay free.

A live request that finds none evicts a batch request, whose work is lost; a free place costs throughput.
"""
ROUND_SECONDS = 0.5
"""Measurements of so long decide together."""
SHRINK = 0.7
GROWTH_SHARE = 0.05
"""Of the engine's places, one at least: how much a round without a wait adds."""
TOLERATED_SHARE = 0.05
"""Of a round's measurements so many may be above the target."""


class BatchShare:
    """The limit of batch requests in one engine.

    Args:
        places: requests that the engine runs at once.
        most: batch requests that it holds without live traffic; more than `places`, so that it never runs dry.
        first_seconds: target of the wait for a live request's first token.
        gap_seconds: target of the time between two of its tokens.
        bounded: the engine bounds its steps, so that neither target needs fewer batch requests.
    """

    def __init__(
        self, places: int, most: int, first_seconds: float, gap_seconds: float, *, bounded: bool = False
    ) -> None:
        self._places = places
        self._most = most
        targets = (math.inf, math.inf) if bounded else (first_seconds, gap_seconds)
        self._targets = dict(zip(("first", "gap"), targets, strict=True))
        self._ceiling = self._beginning = float(places)
        self._live_at = -math.inf
        self._inside = 0
        self._peaks: deque[tuple[float, int]] = deque()
        self._round_at = 0.0
        self._counts = {"first": [0, 0], "gap": [0, 0]}

    def live(self, now: float, inside: int) -> None:
        """Note how many live requests there are, inside and waiting, as that changes."""
        if inside or self._inside:
            self._live_at = now
        self._inside = inside
        second = math.floor(now)
        if self._peaks and self._peaks[-1][0] == second:
            self._peaks[-1] = (second, max(inside, self._peaks[-1][1]))
        else:
            self._peaks.append((second, inside))
        while self._peaks and self._peaks[0][0] < second - PEAK_SECONDS:
            self._peaks.popleft()

    def measured(
        self,
        now: float,
        kind: str,
        seconds: float,
        batch_inside: int,
        times: int = 1,
        *,
        beginning: Callable[[], int] = lambda: 0,
    ) -> None:
        """Note a live request's wait for its first token (`first`) or for a later one (`gap`).

        `beginning`: returns how many of the batch requests inside have no token yet.
        """
        counts = self._counts[kind]
        counts[0] += times
        counts[1] += times * (seconds > self._targets[kind])
        if now - self._round_at < ROUND_SECONDS:
            return
        self._round_at = now
        late = any(above > TOLERATED_SHARE * total for total, above in self._counts.values())
        self._counts = {kind: [0, 0] for kind in self._counts}
        step = max(1.0, GROWTH_SHARE * self._places)
        if late and self._beginning > 1:
            self._beginning = max(1.0, SHRINK * min(self._beginning, max(beginning(), 1)))
        elif late:
            self._ceiling = max(1.0, SHRINK * min(self._ceiling, max(batch_inside, 1)))
        elif self._ceiling < self._places:
            if batch_inside >= math.floor(self._ceiling) - 1:
                self._ceiling = min(float(self._places), self._ceiling + step)
        else:
            self._beginning = min(float(self._places), self._beginning + step)

    def is_quiet(self, now: float) -> bool:
        """True if there is no live traffic."""
        return not self._inside and now - self._live_at > QUIET_SECONDS

    def reserved(self, now: float) -> int:
        """Return the places that stay free for live requests, or have them: the most that they needed lately."""
        second = math.floor(now)
        peaks = (peak for at, peak in self._peaks if at >= second - PEAK_SECONDS)
        return min(self._places, max([self._inside, *peaks]))

    def limit(self, now: float) -> int:
        """Return how many batch requests may be inside now."""
        if self.is_quiet(now):
            return self._most
        return max(0, min(self._most, math.floor(self._ceiling), self._places - self.reserved(now)))

    def beginning_limit(self, now: float) -> int:
        """Return how many batch requests without a token may be inside now."""
        return self._most if self.is_quiet(now) else math.floor(self._beginning)
