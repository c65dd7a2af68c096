"""Retention, from beat: deletes the records of what ended long ago. Garbage collection then deletes their content."""

from __future__ import annotations

import logging
import time
from collections import Counter

from store import retention
from store.retention import Old
from tasks.context import AppContext

log = logging.getLogger(__name__)

PURGE_SECONDS = 10.0
"""Longest that one tick deletes; the next one goes on."""


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
    for find in (retention.batches, retention.jobs):
        more = True
        while more and time.monotonic() < ends_at:
            with context.database.read() as session:
                ended = find(session, before)
            for old in ended:
                purge_all(old)
            more = bool(ended)
    for old in retention.others(now, before):
        purge_all(old)
    if purged:
        log.info("purged", extra={"rows": dict(purged)})
