"""Jobs whose items have all ended are finished."""

from __future__ import annotations

from jobs import messages
from store.jobs import lifecycle
from tasks.context import AppContext


def start_ready(context: AppContext) -> None:
    """Start to finish every job whose items and batches have all ended."""
    with context.database.read() as session:
        if not lifecycle.any_ends(session):  # the usual case, without waiting for the write lock
            return
    with context.database.write() as session:
        ready = lifecycle.claim_finishable(session, context.settings.queue_seconds)
    for job_id in ready:
        messages.finish(job_id)
