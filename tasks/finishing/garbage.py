"""Garbage collection: deletes old content without a record, shard by shard; and records of what ended long ago.

New content without a record may still get one; only content older than `BATCHYARD_GARBAGE_GRACE_SECONDS` is deleted.
"""

import logging
import time
from collections import Counter

from store.artifacts import SHARDS
from store.deletion import garbage, retention
from store.deletion.retention import Old
from store.records import Batch, Job
from tasks.context import AppContext
from tasks.finishing import erasure

log = logging.getLogger(__name__)

NAMES_AT_ONCE = 500
PURGE_SECONDS = 10.0
"""Longest that one tick deletes records; the next one goes on."""


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


def purge(context: AppContext, now: float) -> None:
    """Delete what is old at `now` (Unix seconds), a few rows per transaction, for PURGE_SECONDS at most."""
    ends_at = time.monotonic() + PURGE_SECONDS
    purged: Counter[str] = Counter()

    def purge_all(old: Old) -> None:
        more = True
        while more and time.monotonic() < ends_at:
            with context.database.read() as session:  # usually there is nothing, and no need for the write lock
                keys = retention.find(session, old)
            if keys:
                with context.database.write() as session:
                    purged[old.record.__tablename__] += retention.purge(session, old, keys)
            more = len(keys) == retention.ROWS

    before = now - context.settings.retention
    for old in retention.events(now - context.settings.events_retention):
        purge_all(old)
    for record in (Batch, Job):
        more = True
        while more and time.monotonic() < ends_at:
            with context.database.read() as session:
                ended = retention.work(session, record, before)
            for old in ended:
                purge_all(old)
            more = bool(ended)
    for old in retention.others(now, before):
        purge_all(old)
    if purged:
        log.info("purged", extra={"rows": dict(purged)})
