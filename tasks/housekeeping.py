"""Housekeeping, from beat: whatever was lost on the way is found again here, from the records."""

from __future__ import annotations

import logging

from store import batches, segments
from tasks import dispatch, finish, messages
from tasks.house import House

log = logging.getLogger(__name__)


def tick(house: House) -> None:
    """Look after leases that ran out, completion windows that have passed, and messages that were lost."""
    with house.database.write() as session:
        recovered = segments.recover(session)
        expired = batches.expire(session)
        unvalidated = batches.take_validatable(session, batches.MESSAGE_SECONDS)
    if recovered:
        log.warning("segments recovered", extra={"segments": recovered})
    for batch_id in expired:
        log.warning("completion window has passed", extra={"batch_id": batch_id})
    for batch_id in unvalidated:
        messages.validate(batch_id)
    finish.start_ready(house)
    dispatch.run(house)
