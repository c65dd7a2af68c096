"""Rate limits per minute: requests and uploaded bytes of a key, and failed sign-ins of an address.

Redis counts them over a sliding window. While Redis is down nothing is limited: accepting work does not need it.
"""

import contextlib
import logging
import time
from collections.abc import Iterator

from flask import Flask, Response, current_app, g
from limits import RateLimitItemPerMinute
from limits.errors import StorageError
from limits.storage import RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from batchyard.errors import RateLimitError
from tasks.context import AppContext

log = logging.getLogger(__name__)

# Uploads are counted in steps of this many bytes: a round trip to Redis for each chunk costs more than writing it.
STEP_BYTES = 4 * 1024 * 1024
_SIGN_INS = RateLimitItemPerMinute(10)


def register(app: Flask, context: AppContext) -> None:
    storage = RedisStorage("redis://", connection_pool=context.redis.connection_pool, wrap_exceptions=True)
    app.extensions["limiter"] = SlidingWindowCounterRateLimiter(storage)

    @app.after_request
    def _add_headers(response: Response) -> Response:
        """Add OpenAI's x-ratelimit-* headers for each limit that this request counted against."""
        for what, (limit, remaining, wait) in g.get("rate_limits", {}).items():
            response.headers[f"x-ratelimit-limit-{what}"] = str(limit)
            response.headers[f"x-ratelimit-remaining-{what}"] = str(remaining)
            response.headers[f"x-ratelimit-reset-{what}"] = f"{wait:.3f}s"
        return response


def count_request(context: AppContext, key_id: str) -> None:
    """Count one request of a key, for its limit and the response's headers. Raises RateLimitError."""
    _count(key_id, "requests", context.settings.requests_per_minute, 1)


def count_bytes(context: AppContext, key_id: str, size: int) -> None:
    """Count uploaded bytes of a key. Raises RateLimitError."""
    _count(key_id, "bytes", context.settings.upload_bytes_per_minute, size)


@contextlib.contextmanager
def _limiter() -> Iterator[SlidingWindowCounterRateLimiter]:
    """Give the limiter to the block, which ends where it asks the limiter while Redis is away."""
    try:
        yield current_app.extensions["limiter"]
    except StorageError as error:
        log.warning("rate limits are not kept, Redis is away: %s", error)


def count_failed_sign_in(address: str) -> None:
    """Count a sign-in that has failed from an address. Raises RateLimitError: too many have failed there.

    One that succeeds is never refused: others may share the address.
    """
    with _limiter() as limiter:
        if not limiter.hit(_SIGN_INS, "sign-ins", address):
            wait = max(limiter.get_window_stats(_SIGN_INS, "sign-ins", address)[0] - time.time(), 1.0)
            raise RateLimitError(
                f"Too many wrong keys from this address; try again in {wait:.0f} s. A right one is taken at once.",
                retry_after=wait,
            )


def _count(key_id: str, what: str, limit: int, cost: int) -> None:
    item = RateLimitItemPerMinute(limit)
    with _limiter() as limiter:
        accepted = limiter.hit(item, what, key_id, cost=cost)
        reset_at, remaining = limiter.get_window_stats(item, what, key_id)
        wait = max(reset_at - time.time(), 0.0)
        g.setdefault("rate_limits", {})[what] = (limit, remaining, wait)
        if not accepted:
            message = f"Rate limit reached: {limit} {what} a minute with one key; try again in {wait:.1f} s."
            raise RateLimitError(message, retry_after=wait)
