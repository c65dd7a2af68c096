"""Deaths of engines, as callers see them and whoever began the run is told of."""

from __future__ import annotations

from dataclasses import dataclass

from batchyard.statuses import AfterDeath


@dataclass(frozen=True)
class Death:
    """One death of an engine.

    Attributes:
        engine: identifies the engine that died: each of its callers reports its death.
        replica: index among the model's replicas.
        reason: why it died, as far as is known.
        requests: how many of the run were in it.
    """

    model: str
    engine: str
    replica: int
    reason: str
    requests: int
    next: AfterDeath
