"""Garbage collection: deletes old content without a record, shard by shard.

Content is stored before its record, so new content without a record may still get one; only content older than
`BATCHYARD_GARBAGE_GRACE_SECONDS` is deleted. Reading and deleting a few hundred names takes far less time than that.
"""

from __future__ import annotations

import logging
import time

from store import garbage
from store.artifacts import SHARDS
from tasks.context import AppContext
from tasks.finishing import erasure

log = logging.getLogger(__name__)

NAMES_AT_ONCE = 500


def tick(context: AppContext, interval_seconds: float) -> None:
    """Erase what was erased, and collect the next shard, chosen by the clock. Call this every `interval_seconds`."""
    erasure.tick(context)
    shard(context, SHARDS[int(time.time() / interval_seconds) % len(SHARDS)])


def shard(context: AppContext, name: str) -> None:
    """Delete unreferenced old content, unfinished writes, and chunks of batches and jobs that ended long ago."""
    grace, results = context.settings.garbage_grace_seconds, context.settings.results_seconds
    names = context.artifacts.names(name)
    freed: list[int] = []
    for start in range(0, len(names), NAMES_AT_ONCE):
        chunk = names[start : start + NAMES_AT_ONCE]
        now = time.time()
        with context.database.write() as session:
            garbage.forget_chunks(session, chunk, now - results)
        with context.database.read() as session:
            referenced = garbage.referenced(session, chunk, now - grace, now - results)
        unreferenced = [artifact for artifact in chunk if artifact not in referenced]
        sizes = [context.artifacts.collect(name, artifact, grace) for artifact in unreferenced]
        freed += [size for size in sizes if size is not None]
    if freed:
        log.info("collected", extra={"shard": name, "artifacts": len(freed), "bytes": sum(freed)})
