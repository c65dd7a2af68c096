"""Room: where a cluster has no GPU left for a replica, engines of other models that have no work make way for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.actor import ActorHandle

from batchyard.errors import GpuBusy
from batchyard.models import ModelSpec
from inference.ray_internals import actor_state
from inference.residents import directory

PLACING_SECONDS = 5.0
"""What a replica's process may take to start before it is taken for one that waits for a place."""
PATIENCE_SECONDS = 30.0
UNPLACED = ("DEPENDENCIES_UNREADY", "PENDING_CREATION")

log = logging.getLogger(__name__)


def evict_idle(spec: ModelSpec, replicas: Sequence[ActorHandle]) -> None:
    """Return once each of the model's replicas has its place; what is idle is stopped for it, the longest idle first.

    Returns too if no engine of ours is in the way: then whoever waits for the start says what is missing.

    Raises:
        GpuBusy: other models' engines are at work there. The replicas that have no place are given up.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while unplaced := [handle for handle in replicas if actor_state(handle) in UNPLACED]:
        others = _others(spec)
        if not others:
            return
        name = max(others, key=lambda name: others[name]["idle_seconds"])
        if others[name]["idle_seconds"] > 0 and directory.evict(name):
            log.info("engine makes way", extra={"engine": name, "model": spec.name})
        elif time.monotonic() > until:
            for handle in unplaced:
                ray.kill(handle)
            holders = sorted({state["model"] for state in others.values()})
            raise GpuBusy(
                f"model {spec.name} waits for a GPU: engines of {', '.join(holders)} are at work on them",
                holders=holders,
            )
        time.sleep(0.5)


def _others(spec: ModelSpec) -> dict[str, dict[str, Any]]:
    """What the engines of other models that have GPUs say of themselves. One that is just starting is at work."""
    return {
        name: {"idle_seconds": 0.0, **state}
        for name, state in directory.states().items()
        if state["model"] != spec.name and state.get("gpus", 1)
    }
