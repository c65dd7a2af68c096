"""Engine sessions: one run of a segment as its engines know it, and its time limits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSession:
    """One run of a segment as its engines know it."""

    name: str  # unique to this run
    idempotency_key: str  # the same for each run of the same segment
    rows: int  # number of its requests
    in_flight: int  # limit of requests in one replica at once
    # Its requests are turns of items: those of an item go to one replica, where their prefix is cached
    by_item: bool = False
    alone: bool = False  # each of its requests has an engine to itself
    replica: int | None = None  # the only one that answers it; None: all of the model


@dataclass(frozen=True)
class EngineTimeouts:
    """Time limits of a session, in seconds."""

    request_timeout: float  # the longest that one request may run
    start_timeout: float  # the longest that an engine may take to start
    idle_seconds: float  # engines stop after so long without work
    hang_margin: float = 30.0  # an engine that is silent for so long beyond `request_timeout` is killed
