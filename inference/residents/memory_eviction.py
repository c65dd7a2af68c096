"""Memory eviction: idle engines on this machine are stopped for one that would not fit into its memory."""

import logging
import time
from pathlib import Path

from batchyard.models import ModelSpec
from inference.doctor import memory
from inference.residents import directory, process

MARGIN_BYTES = 512 * 2**20
"""What an engine takes beside its weights and its KV cache, at least."""
END_SECONDS = 5.0
"""An engine that was stopped has given its memory back within this time."""

log = logging.getLogger(__name__)


def evict_idle(spec: ModelSpec) -> None:
    """Stop idle engines of other models here, the longest idle first, until one replica of the model fits.

    Returns too if no engine is idle: what a start lacks, the start says itself. Call it where the engine will run.
    """
    needed = memory.need(spec, Path(spec.source)) if spec.source else None
    room = MARGIN_BYTES + (needed.total if needed else 0)
    kept: set[str] = set()
    while memory.this_machine().available < room:
        idle = {
            name: engine
            for name, engine in directory.states().items()
            if name not in kept
            and engine.model != spec.name
            and engine.idle_seconds >= directory.IDLE_SECONDS
            and engine.process.get("place") == process.place()
        }
        if not idle:
            return
        name = max(idle, key=lambda name: idle[name].idle_seconds)
        kept.add(name)  # it is tried once
        if directory.evict(name):
            log.info("engine makes way for want of memory", extra={"engine": name, "model": spec.name})
            deadline = time.monotonic() + END_SECONDS
            while not process.is_gone(idle[name].process) and time.monotonic() < deadline:
                time.sleep(0.05)
