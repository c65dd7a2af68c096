"""Housekeeping, from beat: whatever was lost on the way is found again here, from the records."""

from __future__ import annotations

import logging

from store import batches, leases, segments
from tasks import messages
from tasks.advance import advance
from tasks.context import AppContext
from tasks.heartbeat import has_died

log = logging.getLogger(__name__)


def tick(context: AppContext) -> None:
    """Look after leases that ran out, completion windows that have passed, and messages that were lost.

    A lease whose holder was a process of this machine, and died, need not run out.
    """
    with context.database.read() as session:
        dead = list(filter(has_died, leases.holders(session)))
    with context.database.write() as session:
        if dead:
            leases.end_leases(session, dead)
        recovered = segments.recover(session)
        expired = batches.expire(session)
        unvalidated = batches.claim_validatable(session, batches.MESSAGE_SECONDS)
    if recovered:
        log.warning("segments recovered", extra={"segments": recovered})
    for batch_id in expired:
        log.warning("completion window has passed", extra={"batch_id": batch_id})
    for batch_id in unvalidated:
        messages.validate(batch_id)
    advance(context)
