"""Engine sessions: one run of a segment as its engines know it, and its time limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSession:
    """One run of a segment as its engines know it.

    Attributes:
        name: unique to this run.
        idempotency_key: the same for each run of the same segment.
        rows: number of its requests.
        in_flight: limit of requests in one replica at once.
    """

    name: str
    idempotency_key: str
    rows: int
    in_flight: int


@dataclass(frozen=True)
class EngineTimeouts:
    """Time limits of a session, in seconds."""

    request_timeout: float
    start_timeout: float
    idle_seconds: float
    hang_margin: float
