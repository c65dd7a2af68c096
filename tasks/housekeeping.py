"""Housekeeping, from beat: recovers lost work from the database."""

from __future__ import annotations

import logging

from store import batches, leases, segments
from store.jobs import lifecycle
from tasks import messages
from tasks.advance import advance
from tasks.context import AppContext
from tasks.execution import progress
from tasks.heartbeat import has_died
from tasks.jobs import dependencies, finish
from tasks.jobs import progress as job_progress

log = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""A job that was woken is woken again if nobody has advanced it by then: its message may be lost."""


def tick(context: AppContext) -> None:
    """Recover segments with expired leases, end batches past their window or past help, and send lost messages again.

    A lease ends at once if its holder was a process of this machine that died.
    """
    with context.database.read() as session:
        dead = list(filter(has_died, leases.holders(session)))
    with context.database.write() as session:
        if dead:
            leases.end_leases(session, dead)
        recovered = segments.recover(session)
        # Jobs before batches, as in the ticks of jobs: in another order the two would wait for each other.
        jobs_expired = lifecycle.expire(session)
        jobs_hopeless = lifecycle.give_up(session)
        jobs_unvalidated = lifecycle.claim_validatable(session, batches.MESSAGE_SECONDS)
        jobs_idle = lifecycle.claim_advanceable(session, IDLE_SECONDS)
        expired = batches.expire(session)
        hopeless = batches.give_up(session)
        unvalidated = batches.claim_validatable(session, batches.MESSAGE_SECONDS)
    if recovered:
        log.warning("segments recovered", extra={"segments": recovered})
    for batch_id in expired:
        log.warning("completion window has passed", extra={"batch_id": batch_id})
    for batch_id in hopeless:
        log.error("batch given up", extra={"batch_id": batch_id})
        progress.publish(context, batch_id)
    for batch_id in unvalidated:
        messages.validate(batch_id)
    for job_id in jobs_expired:
        log.warning("completion window has passed", extra={"job_id": job_id})
    for job_id in jobs_hopeless:
        log.error("job given up", extra={"job_id": job_id})
        job_progress.publish(context, job_id)
    for job_id in jobs_unvalidated:
        messages.validate_job(job_id)
    for job_id in {*jobs_expired, *jobs_idle}:
        messages.advance_job(job_id)  # whatever message is said to be on its way
    dependencies.release_ready(context)
    finish.start_ready(context)
    advance(context)
