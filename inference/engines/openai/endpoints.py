"""The endpoints of one model: their health, their limits, the choice of the next one, and the queue for its slots.

But for the queue this module has no clock and no network: `now` is the caller's time.monotonic(), in seconds.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from batchyard.backoff import Backoff
from inference.progress import PROGRESS

FIRST = 16
"""Limit of a new endpoint that has answered nothing yet. So few in flight are no load, and a prefix stays together."""
FAILURES = 3
"""Failures in a row after which an endpoint is unhealthy."""
WEIGHT = 0.1
"""Weight of the newest value in the exponentially weighted moving averages."""
TROUBLE = 0.1
"""The share of failed requests above which an endpoint is degraded."""
DEGRADED_COST = 10
"""A degraded endpoint counts as this many times slower than measured."""
HALF_LIFE = 30.0
"""Seconds after which the measured slowness of an idle endpoint counts half: it may be faster now."""
STALE_SECONDS = 300.0
QUIET_SECONDS = 10.0
"""A usable endpoint without a response for this long is probed."""
MAX_DELAY = 60.0
"""Most seconds between two attempts or two probes."""
LOAD_BOUND = 1.25
"""Share of the requests in flight, relative to the share of the speed, above which an endpoint's prefixes overflow."""
BACKOFF = Backoff(0.5, longest=MAX_DELAY, jitter=(0.0, 1.0))

log = logging.getLogger(__name__)


class EndpointHealth(StrEnum):
    """The health of an endpoint.

    healthy: it gets requests.
    degraded: it gets fewer requests, because more than TROUBLE of its latest ones failed (a moving average).
    unhealthy: it gets probes only. Its last FAILURES requests or probes failed, or a refusal showed that it is
        misconfigured (401, 403, 404, a redirect, another model), or it has not passed a probe yet. The first probe that
        it passes makes it degraded or healthy again.
    stale: unhealthy, discovered through a file, and without any response, errors included, for STALE_SECONDS since the
        last response or, if it never had one, since the file's `started_at`. Its server left the file behind.
    """

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    STALE = "stale"


@dataclass(eq=False)
class RemoteEndpoint:
    """One endpoint. `limit` is its limit of requests in flight now, from 1 to `max_in_flight`.

    The limit follows additive increase and multiplicative decrease (Chiu and Jain 1989) after a slow start (Jacobson
    1988). It rises by one for each good answer up to `threshold`, and from there by one for each `limit` good answers.
    An overload halves it, once for all the requests in flight at that moment. After an outage it begins with one.
    """

    url: str  # the base URL of OpenAI's clients: /chat/completions and /models stand behind it, whatever it ends in
    max_in_flight: int
    last_response_at: float  # time of its last response of any kind; its creation before the first
    api_key_env: str | None = None  # the environment variable that holds its key
    discovered: bool = False  # it comes from an endpoint file
    gone: bool = False  # its file was deleted. It finishes its requests and gets no more.
    in_flight: int = 0
    limit: float = field(init=False)
    threshold: float = field(init=False)
    speed: float | None = None  # answers per second, a moving average; None before the first
    reason: str = "not probed yet"  # the last failure, which explains an unhealthy endpoint
    probe_at: float = -math.inf  # time of the next probe while it is unhealthy
    backoff: Backoff = BACKOFF  # the time between its probes while it is unhealthy
    version: str | None = None  # its server's version; None before the first probe
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

    def health(self, now: float) -> EndpointHealth:
        if self.down:
            silent = self.discovered and now - self.last_response_at > STALE_SECONDS
            return EndpointHealth.STALE if silent else EndpointHealth.UNHEALTHY
        return EndpointHealth.DEGRADED if self._trouble > TROUBLE else EndpointHealth.HEALTHY

    def due(self, now: float) -> bool:
        return now >= self.probe_at if self.down else now - self.last_response_at >= QUIET_SECONDS

    def state(self, now: float) -> dict[str, Any]:
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

    def effective_speed(self, unmeasured: float) -> float:
        """Answers per second that it can be relied on for; `unmeasured` is assumed where none were measured."""
        return (self.speed or unmeasured) / (DEGRADED_COST if self._trouble > TROUBLE else 1)

    def expected_wait(self, now: float, unmeasured: float) -> float:
        """Seconds until one more request is answered."""
        wait = (self.in_flight + 1) / self.effective_speed(unmeasured)
        if self.speed is not None and self.in_flight == 0:
            wait /= 2 ** min((now - self._answered_at) / HALF_LIFE, 100)
        return wait

    def rank(self, prefix: bytes) -> bytes:
        """Return its rank for a prefix. No other endpoint changes it; the highest comes first."""
        return hashlib.blake2b(self.url.encode(), key=prefix, digest_size=8).digest()

    def answered(self, now: float, began: float, beside: int) -> None:
        """Record a good answer to a request that began beside `beside` others. Call it before `in_flight` falls."""
        # Little's law: requests in flight divided by the time of each is the throughput.
        speed = (beside + self.in_flight) / 2 / max(now - began, 1e-6)
        self.speed = speed if self.speed is None else self.speed + WEIGHT * (speed - self.speed)
        self._answered_at = now
        self._trouble -= WEIGHT * self._trouble
        self._outages = 0
        self.responded(now)
        if 2 * self.in_flight >= self.limit:  # an unused limit was not tested
            self.limit = min(self.max_in_flight, self.limit + (1 if self.limit < self.threshold else 1 / self.limit))

    def responded(self, now: float) -> None:
        """Record a response that does not blame the endpoint, such as 400."""
        self.last_response_at = now
        self._failures = 0

    def overloaded(self, now: float, began: float, reason: str) -> None:
        """Record that it has too many requests: it refused one that began at `began`, or was too slow."""
        self.reason = reason
        if began >= self._cut_at:
            self.limit = self.threshold = max(1.0, self.limit / 2)
            self._cut_at = now

    def pause(self, now: float, seconds: float) -> None:
        """Send it nothing for this many seconds (Retry-After)."""
        self._paused_until = max(self._paused_until, now + seconds)

    def failed(self, now: float, reason: str, *, responded: bool = True, fatal: bool = False) -> None:
        """Record a failed request. `responded`: there was a response; `fatal`: every request will fail so."""
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
        self.responded(now)
        if self.down:
            self.down = False
            if self._outages:
                self.limit = 1.0
            else:
                self.reason = ""
            log.info("endpoint %s", self.health(now), extra={"endpoint": self.url})

    def probe_failed(self, now: float, reason: str, *, responded: bool, fatal: bool) -> None:
        """Record a failed probe and back off until the next one."""
        if not self.down:
            self.failed(now, reason, responded=responded, fatal=fatal)
            return
        self.reason = reason
        if responded:
            self.last_response_at = now
        self._outages += 1
        self.probe_at = now + self.backoff.seconds(self._outages)


def choose(
    endpoints: Iterable[RemoteEndpoint], now: float, avoid: RemoteEndpoint | None = None, prefix: bytes | None = None
) -> RemoteEndpoint | None:
    """Return an endpoint with capacity for a request; `avoid` only if there is no other.

    Without a prefix it is the one with the least expected wait. A prefix goes to its highest-ranked endpoint
    (rendezvous hashing, Thaler and Ravishankar 1998), which has it cached, while the load there is below LOAD_BOUND
    times the mean (bounded loads: Mirrokni, Thorup and Zadimoghaddam 2016). What is too much for it goes to the
    next-ranked endpoint with less than the mean, so that even a single prefix leaves none without work.

    `prefix`: the key of the requests that begin alike, at most 64 bytes.
    """
    ready = [endpoint for endpoint in endpoints if endpoint.has_capacity(now)]
    ready = [endpoint for endpoint in ready if endpoint is not avoid] or ready
    if not ready:
        return None
    unmeasured = max((endpoint.speed or 0.0 for endpoint in ready), default=0.0) or 1.0
    if prefix is None:
        return min(ready, key=lambda endpoint: endpoint.expected_wait(now, unmeasured))
    in_flight = max(1 + sum(endpoint.in_flight for endpoint in ready), FIRST * len(ready))
    per_speed = in_flight / sum(endpoint.effective_speed(unmeasured) for endpoint in ready)
    first, *others = sorted(ready, key=lambda endpoint: endpoint.rank(prefix), reverse=True)
    if first.in_flight < LOAD_BOUND * per_speed * first.effective_speed(unmeasured):
        return first
    # The means add up to more than is in flight, and the first has more than its mean, so another has less.
    return next(one for one in others if one.in_flight < per_speed * one.effective_speed(unmeasured))


class _SlotRequest(NamedTuple):
    slot: asyncio.Future[RemoteEndpoint]
    last: RemoteEndpoint | None
    prefix: bytes | None


class SlotQueue:
    """Hands out slots, first come first served. Live requests go first, and what is retried before its like."""

    def __init__(self, endpoints: Mapping[Any, RemoteEndpoint]) -> None:
        """`endpoints` may change at any time; call `hand_out` when capacity was added."""
        self._endpoints = endpoints
        self._live: deque[_SlotRequest] = deque()
        self._batch: deque[_SlotRequest] = deque()

    async def acquire(
        self, end: Callable[[], float], last: RemoteEndpoint | None = None, prefix: bytes | None = None
    ) -> RemoteEndpoint | None:
        """Wait for a slot, which `release` frees; return None if none is free until `end` (time.monotonic())."""
        slot: asyncio.Future[RemoteEndpoint] = asyncio.get_running_loop().create_future()
        progress = PROGRESS.get()
        waiting = self._live if progress is not None and progress.live else self._batch
        if last is None:
            waiting.append(_SlotRequest(slot, None, prefix))
        else:
            waiting.appendleft(_SlotRequest(slot, last, prefix))
        self.hand_out()
        try:
            while not slot.done():
                remaining = end() - time.monotonic()
                if remaining <= 0:
                    return None
                await asyncio.wait([slot], timeout=remaining)
            return slot.result()
        except asyncio.CancelledError:
            if slot.done():
                self.release(slot.result())
            raise
        finally:
            slot.cancel()

    def release(self, endpoint: RemoteEndpoint) -> None:
        endpoint.in_flight -= 1
        self.hand_out()

    def hand_out(self) -> None:
        now = time.monotonic()
        while waiting := self._live or self._batch:
            slot, last, prefix = waiting[0]
            if not slot.done():
                endpoint = choose(self._endpoints.values(), now, last, prefix)
                if endpoint is None:
                    return
                endpoint.in_flight += 1
                slot.set_result(endpoint)
            waiting.popleft()
