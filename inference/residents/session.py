"""A run as its engines know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSession:
    """A run as its engines know it.

    Attributes:
        name: its own.
        idempotency_key: that of the work it does, the same for each run that asks for what is left of that work.
        rows: its requests in all.
        in_flight: those one replica has at once.
    """

    name: str
    idempotency_key: str
    rows: int
    in_flight: int


@dataclass(frozen=True)
class EngineTimeouts:
    """What a run asks of its engines, all in seconds."""

    request_timeout: float
    start_timeout: float
    idle_seconds: float
    hang_margin: float
