"""Limits of live requests with one key: requests and tokens a minute, and requests at once, each at one gateway.

They are counted in this process: a request would wait longer for Redis than for all else here.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from batchyard.errors import RateLimitError
from batchyard.settings import Settings


class LiveRateLimitError(RateLimitError):
    """A limit of live requests, with the headers that say how it stands."""

    def __init__(self, message: str, *, retry_after: float, headers: dict[str, str]) -> None:
        super().__init__(message, retry_after=retry_after)
        self.headers = headers


class LiveLimits:
    """What the keys may still send, over a sliding minute."""

    def __init__(self, settings: Settings) -> None:
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._requests = RateLimitItemPerMinute(settings.live_requests_per_minute)
        self._tokens = RateLimitItemPerMinute(settings.live_tokens_per_minute)
        self._most_at_once = settings.live_requests_at_once
        self._at_once: Counter[str] = Counter()

    @contextlib.contextmanager
    def at_once(self, key_id: str) -> Iterator[None]:
        """Count a request for as long as it is answered. Raises RateLimitError."""
        if self._at_once[key_id] >= self._most_at_once:
            raise RateLimitError(
                f"Rate limit reached: {self._most_at_once} live requests at once with one key; wait for answers.",
                retry_after=1.0,
            )
        self._at_once[key_id] += 1
        try:
            yield
        finally:
            self._at_once[key_id] -= 1
            if not self._at_once[key_id]:
                del self._at_once[key_id]

    def count_request(self, key_id: str) -> dict[str, str]:
        """Count a request, and return OpenAI's headers of both limits. Raises LiveRateLimitError."""
        accepted = {
            "requests": self._limiter.hit(self._requests, "requests", key_id),
            "tokens": self._limiter.test(self._tokens, "tokens", key_id),
        }
        headers: dict[str, str] = {}
        waits: dict[str, float] = {}
        for what, item in (("requests", self._requests), ("tokens", self._tokens)):
            reset_at, remaining = self._limiter.get_window_stats(item, what, key_id)
            waits[what] = max(reset_at - time.time(), 0.0)
            headers[f"x-ratelimit-limit-{what}"] = str(item.amount)
            headers[f"x-ratelimit-remaining-{what}"] = str(max(0, remaining))
            headers[f"x-ratelimit-reset-{what}"] = f"{waits[what]:.3f}s"
        for what, item in (("requests", self._requests), ("tokens", self._tokens)):
            if not accepted[what]:
                reached = f"Rate limit reached: {item.amount} {what} a minute with one key"
                message = f"{reached}; try again in {waits[what]:.1f} s."
                raise LiveRateLimitError(message, retry_after=waits[what], headers=headers)
        return headers

    def count_tokens(self, key_id: str, tokens: int) -> None:
        """Count the tokens of an answered request. An answer may have more than are left."""
        if tokens:
            _, remaining = self._limiter.get_window_stats(self._tokens, "tokens", key_id)
            self._limiter.hit(self._tokens, "tokens", key_id, cost=min(tokens, max(1, remaining)))
