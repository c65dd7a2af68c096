"""Engine sessions: one run of a segment as its engines know it, and its time limits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSession:
    """One run of a segment as its engines know it.

    Attributes:
        name: unique to this run.
        idempotency_key: the same for each run of the same segment.
        rows: number of its requests.
        in_flight: limit of requests in one replica at once.
        by_item: its requests are turns of items: those of an item go to one replica, where their prefix is cached.
    """

    name: str
    idempotency_key: str
    rows: int
    in_flight: int
    by_item: bool = False


@dataclass(frozen=True)
class EngineTimeouts:
    """Time limits of a session, in seconds.

    Attributes:
        request_timeout: the longest that one request may run.
        start_timeout: the longest that an engine may take to start.
        idle_seconds: engines stop after so long without work.
        hang_margin: an engine that is silent for so long beyond `request_timeout` is killed.
    """

    request_timeout: float
    start_timeout: float
    idle_seconds: float
    hang_margin: float = 30.0
