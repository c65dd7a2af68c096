"""Whether the deployment is idle, as a key in Redis says: beat then sends fewer ticks of housekeeping.

A tick writes the key, and whoever brings work in clears it. Without Redis nobody is idle.
"""

import contextlib

import redis

TICKS = 4
"""Of an idle deployment's ticks one of so many is sent."""
SECONDS = 0.3
"""Longest wait for Redis of who only asks, or brings work in: a tick that is late costs less than a request that is."""
_KEY = "batchyard:idle"


def impatient(url: str) -> redis.Redis:
    """Return a client of a Redis that waits no longer than SECONDS for it."""
    return redis.Redis.from_url(url, socket_timeout=SECONDS, socket_connect_timeout=SECONDS)


def mark(client: redis.Redis, seconds: float) -> None:
    """Say that the deployment is idle, for so long."""
    with contextlib.suppress(redis.RedisError):
        client.set(_KEY, 1, px=int(seconds * 1000))


def clear(client: redis.Redis) -> None:
    """Have the next tick come soon: there may be something to do."""
    with contextlib.suppress(redis.RedisError):
        client.delete(_KEY)


def is_marked(client: redis.Redis) -> bool:
    try:
        return bool(client.exists(_KEY))
    except redis.RedisError:
        return False
