"""Endpoints that serve one model: how each of them is, how much it is given, and which is asked next.

No clock and no network in here: `now` is time.monotonic() of the caller, in seconds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from batchyard.backoff import Backoff

FIRST = 16
"""Requests given to a new endpoint at once, before it has answered any."""
FAILURES = 3
"""Failures in a row after which an endpoint is unhealthy."""
WEIGHT = 0.1
"""Of the newest value in the moving averages (exponentially weighted)."""
TROUBLE = 0.1
"""The share of failed requests above which an endpoint is degraded."""
DEGRADED_COST = 10
"""A degraded endpoint is taken to be so many times slower than it was measured."""
HALF_LIFE = 30.0
"""Seconds in which the measured slowness of an endpoint that has nothing to do counts half: it may be faster now."""
STALE_SECONDS = 300.0
QUIET_SECONDS = 10.0
"""A usable endpoint that has answered nothing for so long is probed."""
MAX_DELAY = 60.0
"""Most seconds between two attempts or two probes."""
BACKOFF = Backoff(0.5, longest=MAX_DELAY, jitter=(0.0, 1.0))

log = logging.getLogger(__name__)


class Health(StrEnum):
    """How an endpoint is.

    healthy: it is asked.
    degraded: it is asked less: of its latest requests, more than TROUBLE failed (a moving average).
    unhealthy: it is not asked, only probed: its last FAILURES requests or probes failed, or it refused one in a way
        that says it is misconfigured (401, 403, 404, a redirect, another model), or it has not passed a probe yet. The
        first probe it passes makes it degraded or healthy again.
    stale: unhealthy, found through a file, and without an answer of any kind, an error included, for STALE_SECONDS
        since that answer or, where there was none, since the file's `started_at`: a file its server left behind.
    """

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    STALE = "stale"


@dataclass(eq=False)
class Endpoint:
    """One endpoint. `limit` is how many requests it may have now, from 1 to `max_in_flight`.

    The limit follows additive increase and multiplicative decrease (Chiu and Jain 1989) after a slow start (Jacobson
    1988): one more for each good answer up to `threshold`, from there one more for each `limit` good answers; half of
    it where the endpoint is overloaded, once for all the requests that it had at that moment. After an outage it
    begins with one request.

    Attributes:
        url: the base URL, ending in /v1.
        api_key_env: the environment variable that holds its key.
        heard_at: of its last answer of any kind, or of the beginning.
        discovered: found through a file.
        gone: its file has vanished; what it has is awaited, more it does not get.
        speed: answers per second, a moving average; None before the first.
        reason: what went wrong last, which is why it is unhealthy if it is.
        probe_at: when it is to be probed next, while it is unhealthy.
        backoff: the time between its probes while it is unhealthy.
        version: what its server says it is; None: not asked yet.
    """

    url: str
    max_in_flight: int
    last_response_at: float
    api_key_env: str | None = None
    discovered: bool = False
    gone: bool = False
    in_flight: int = 0
    limit: float = field(init=False)
    threshold: float = field(init=False)
    speed: float | None = None
    reason: str = "not probed yet"
    probe_at: float = -math.inf
    backoff: Backoff = BACKOFF
    version: str | None = None
    down: bool = True
    _outages: int = 0
    _failures: int = 0
    _trouble: float = 0.0
    _cut_at: float = -math.inf
    _paused_until: float = -math.inf
    _answered_at: float = -math.inf

    def __post_init__(self) -> None:
        self.limit = min(FIRST, self.max_in_flight)
        self.threshold = self.max_in_flight

    def health(self, now: float) -> Health:
        if self.down:
            silent = self.discovered and now - self.last_response_at > STALE_SECONDS
            return Health.STALE if silent else Health.UNHEALTHY
        return Health.DEGRADED if self._trouble > TROUBLE else Health.HEALTHY

    def due(self, now: float) -> bool:
        """Whether it is time for a probe."""
        return now >= self.probe_at if self.down else now - self.last_response_at >= QUIET_SECONDS

    def state(self, now: float) -> dict[str, Any]:
        """For people: what it is, how it is, and what it has been given."""
        return {
            "url": self.url,
            "health": str(self.health(now)),
            "reason": self.reason,
            "in_flight": self.in_flight,
            "limit": int(self.limit),
            "answers_per_second": self.speed,
        }

    @property
    def usable(self) -> bool:
        return not self.down and not self.gone

    def has_capacity(self, now: float) -> bool:
        return self.usable and self.in_flight + 1 <= self.limit and now >= self._paused_until

    def expected_wait(self, now: float, unmeasured: float) -> float:
        """Seconds until one more request is answered; `unmeasured` is the speed assumed where none was measured."""
        wait = (self.in_flight + 1) / (self.speed or unmeasured)
        if self.speed is not None and self.in_flight == 0:
            wait /= 2 ** min((now - self._answered_at) / HALF_LIFE, 100)
        return wait * DEGRADED_COST if self._trouble > TROUBLE else wait

    def answered(self, now: float, began: float, beside: int) -> None:
        """A good answer to a request that began then, with so many in flight. Called before it leaves `in_flight`."""
        # Little's law: what is in it at once, over how long each takes, is how much it gets done.
        speed = (beside + self.in_flight) / 2 / max(now - began, 1e-6)
        self.speed = speed if self.speed is None else self.speed + WEIGHT * (speed - self.speed)
        self._answered_at = now
        self._trouble -= WEIGHT * self._trouble
        self._outages = 0
        self.responded(now)
        if 2 * self.in_flight >= self.limit:  # a limit that is not in use is not tested either
            self.limit = min(self.max_in_flight, self.limit + (1 if self.limit < self.threshold else 1 / self.limit))

    def responded(self, now: float) -> None:
        """An answer that says nothing bad of the endpoint, such as 400."""
        self.last_response_at = now
        self._failures = 0

    def overloaded(self, now: float, began: float, reason: str) -> None:
        """It refused a request that began then, or was too slow for it, because it has too many."""
        self.reason = reason
        if began >= self._cut_at:
            self.limit = self.threshold = max(1.0, self.limit / 2)
            self._cut_at = now

    def pause(self, now: float, seconds: float) -> None:
        """It wants nothing for that long (Retry-After)."""
        self._paused_until = max(self._paused_until, now + seconds)

    def failed(self, now: float, reason: str, *, responded: bool = True, fatal: bool = False) -> None:
        """A request failed. `responded`: it answered at all; `fatal`: it will fail each time."""
        if responded:
            self.last_response_at = now
        self._trouble += WEIGHT * (1 - self._trouble)
        self._failures += 1
        self.reason = reason
        if not self.down and (fatal or self._failures >= FAILURES):
            self.down = True
            self.version = None
            self._outages += 1
            self.probe_at = now + self.backoff.seconds(self._outages)
            log.warning("endpoint unhealthy", extra={"endpoint": self.url, "reason": reason})

    def probed(self, now: float) -> None:
        """It passed a probe."""
        self.responded(now)
        if self.down:
            self.down = False
            if self._outages:
                self.limit = 1.0
            else:
                self.reason = ""
            log.info("endpoint %s", self.health(now), extra={"endpoint": self.url})

    def probe_failed(self, now: float, reason: str, *, responded: bool, fatal: bool) -> None:
        """It did not pass a probe. Probed again after a time that grows."""
        if not self.down:
            self.failed(now, reason, responded=responded, fatal=fatal)
            return
        self.reason = reason
        if responded:
            self.last_response_at = now
        self._outages += 1
        self.probe_at = now + self.backoff.seconds(self._outages)


def choose(endpoints: Iterable[Endpoint], now: float, avoid: Endpoint | None = None) -> Endpoint | None:
    """Of the endpoints with room, the one with the least expected wait; `avoid` only if there is no other."""
    ready = [endpoint for endpoint in endpoints if endpoint.has_capacity(now)]
    if not ready:
        return None
    unmeasured = max((endpoint.speed or 0.0 for endpoint in ready), default=0.0) or 1.0
    return min(ready, key=lambda endpoint: (endpoint is avoid, endpoint.expected_wait(now, unmeasured)))
