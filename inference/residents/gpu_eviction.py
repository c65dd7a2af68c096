"""GPU eviction: idle engines of other models are stopped for a replica that finds no free GPU."""

import logging
import time
from collections.abc import Sequence
from threading import Event

import ray
from ray.actor import ActorHandle

from batchyard.errors import GpuBusy, Stopped
from batchyard.models import ModelSpec
from inference.ray_internals import UNPLACED, actor_state
from inference.residents import directory

PLACING_SECONDS = 5.0
"""A replica whose process has not started after this long waits for a GPU."""
PATIENCE_SECONDS = 30.0

log = logging.getLogger(__name__)


def evict_idle(spec: ModelSpec, replicas: Sequence[ActorHandle], stopped: Event) -> None:
    """Stop idle engines of other models, the longest idle first, until each of the model's replicas is placed.

    Returns too if one is placed and no engine is idle: the others wait for a GPU in Ray's queue. And if no engine of
    ours holds a GPU: then the start's time limit reports what is missing.

    Raises:
        Stopped: `stopped` is set.
        GpuBusy: other models' engines are at work on the GPUs. The replicas without a GPU are stopped.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while unplaced := [handle for handle in replicas if actor_state(handle) in UNPLACED]:
        # A starting engine counts as one that has a GPU, and as busy.
        others = {
            name: engine
            for name, engine in directory.states().items()
            if engine.model != spec.name and (engine.gpus or engine.state == "starting")
        }
        if not others:
            return
        name = max(others, key=lambda name: others[name].idle_seconds)
        if others[name].idle_seconds >= directory.IDLE_SECONDS and directory.evict(name):
            log.info("engine makes way", extra={"engine": name, "model": spec.name})
        elif len(unplaced) < len(replicas):
            return
        elif time.monotonic() > until:
            for handle in unplaced:
                ray.kill(handle)
            holders = sorted({engine.model for engine in others.values()})
            raise GpuBusy(
                f"model {spec.name} waits for a GPU: engines of {', '.join(holders)} are at work on them",
                holders=holders,
            )
        if stopped.wait(0.5):
            raise Stopped
