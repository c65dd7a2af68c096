"""Housekeeping, from beat: recovers lost work from the database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy.orm import Session

from store import leases, segments
from store.batches import BATCHES, Batches
from store.jobs.lifecycle import JOBS, Jobs
from store.work.lifecycle import MESSAGE_SECONDS
from tasks import messages
from tasks.advance import advance
from tasks.context import AppContext
from tasks.execution import progress
from tasks.heartbeat import has_died
from tasks.jobs import progress as job_progress
from tasks.jobs.finishing import ready
from tasks.jobs.submission import dependencies

log = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""A job that was woken is woken again if nobody has advanced it by then: its message may be lost."""


class _Recovered(NamedTuple):
    """The ids of batches, or of jobs, and what a tick has done to them."""

    expired: list[str]
    hopeless: list[str]
    unvalidated: list[str]


def tick(context: AppContext) -> None:
    """Recover segments with expired leases, end work past its window or past help, and send lost messages again.

    A lease ends at once if its holder was a process of this machine that died.
    """
    with context.database.read() as session:
        dead = list(filter(has_died, leases.holders(session)))
    with context.database.write() as session:
        if dead:
            leases.end_leases(session, dead)
        recovered = segments.recover(session)
        # Jobs before batches, as in the ticks of jobs: in another order the two would wait for each other.
        jobs = _recover(session, JOBS)
        idle = JOBS.claim_advanceable(session, IDLE_SECONDS)
        batches = _recover(session, BATCHES)
    if recovered:
        log.warning("segments recovered", extra={"segments": recovered})
    _announce(context, batches, "batch", messages.validate, progress.publish)
    _announce(context, jobs, "job", messages.validate_job, job_progress.publish)
    for job_id in {*jobs.expired, *idle}:
        messages.advance_job(job_id)  # whatever message is said to be on its way
    dependencies.release_ready(context)
    ready.start_ready(context)
    advance(context)


def _recover(session: Session, life: Batches | Jobs) -> _Recovered:
    return _Recovered(life.expire(session), life.give_up(session), life.claim_validatable(session, MESSAGE_SECONDS))


def _announce(
    context: AppContext,
    work: _Recovered,
    noun: str,
    validate: Callable[[str], None],
    publish: Callable[[AppContext, str], None],
) -> None:
    """Log what a tick has ended, publish it, and start validations anew."""
    for work_id in work.expired:
        log.warning("completion window has passed", extra={f"{noun}_id": work_id})
    for work_id in work.hopeless:
        log.error(f"{noun} given up", extra={f"{noun}_id": work_id})
        publish(context, work_id)
    for work_id in work.unvalidated:
        validate(work_id)
