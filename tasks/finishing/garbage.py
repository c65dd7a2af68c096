"""Collecting garbage: content that no record points at goes once it is old, a shard of the store at a time.

Content is stored before the record that points at it is written, so only its age (`BATCHYARD_GARBAGE_GRACE_SECONDS`)
tells what a writer is about to name from what nobody wants. A look at some names and their deletion take far less time.
"""

from __future__ import annotations

import logging
import time

from store import garbage
from store.artifacts import SHARDS
from tasks.context import AppContext

log = logging.getLogger(__name__)

NAMES_AT_ONCE = 500


def tick(context: AppContext, interval_seconds: float) -> None:
    """Collect the shard whose turn it is by the clock; a tick comes every `interval_seconds`."""
    shard(context, SHARDS[int(time.time() / interval_seconds) % len(SHARDS)])


def shard(context: AppContext, name: str) -> None:
    """Delete what nobody points at in one shard: old content, leftovers, and parts of batches that ended long ago."""
    grace, results = context.settings.garbage_grace_seconds, context.settings.results_seconds
    names = context.artifacts.names(name)
    freed: list[int] = []
    for start in range(0, len(names), NAMES_AT_ONCE):
        chunk = names[start : start + NAMES_AT_ONCE]
        moment = time.time()
        with context.database.write() as session:
            garbage.forget_chunks(session, chunk, moment - results)
        with context.database.read() as session:
            referenced = garbage.referenced(session, chunk, moment - grace)
        collected = [context.artifacts.collect(name, found, grace) for found in chunk if found not in referenced]
        freed += [size for size in collected if size is not None]
    if freed:
        log.info("collected", extra={"shard": name, "artifacts": len(freed), "bytes": sum(freed)})
