"""The life of jobs, and what is special to them."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, false, func, or_, select, update
from sqlalchemy.orm import Session

from batchyard.statuses import JOB_PAUSABLE, JOB_RUNNING, JOB_TRANSITIONS, PAUSABLE, RUNNING, TERMINAL
from store import events
from store.batches import PLAN
from store.jobs import stages
from store.keys import Principal
from store.leases import ATTEMPTS, claim
from store.records import Batch, Job, now
from store.work.lifecycle import FINISHING_SECONDS, Lifecycle

UNFINISHED = Job.total - (Job.completed + Job.failed + Job.stuck + Job.expired_items + Job.cancelled_items)
"""The items of a job that have not ended, in SQL."""

_AMENDED = and_(Job.unwritten > 0, Job.attempts < ATTEMPTS)


class Jobs(Lifecycle[Job]):
    def cancel(self, session: Session, project_id: str, work_id: str, by: Principal | None = None) -> Job:
        """Request that a job stops, with the jobs that it has started. What its items have is kept."""
        job = super().cancel(session, project_id, work_id, by)
        hasten(session, work_id)
        session.refresh(job)
        cancel_children(session, work_id)
        return job

    def _change_pause(
        self, session: Session, by: Principal, work: Job, verb: Literal["pause", "resume"]
    ) -> dict[str, Any]:
        """Pause or resume a job, its batches and the jobs that it has started, with theirs."""
        if verb == "resume":
            sampled = update(Job).where(Job.id == work.id, Job.paused_by == PLAN)
            session.execute(sampled.values(sampling=False))
        values = super()._change_pause(session, by, work, verb)
        if values:
            children = update(Job).where(Job.parent_id == work.id, Job.status.in_(JOB_PAUSABLE))
            session.execute(children.values(**values))
            jobs = select(Job.id).where(or_(Job.id == work.id, Job.parent_id == work.id))
            of_jobs = update(Batch).where(Batch.job_id.in_(jobs), Batch.status.in_(PAUSABLE))
            session.execute(of_jobs.values(**values))
            hasten(session, work.id)
            session.refresh(work)
        return values

    def retries(self, session: Session, ids: Sequence[str], *conditions: ColumnElement[bool]) -> dict[str, list[str]]:
        """Return the ids of the jobs that retry each job, oldest first, without those that judge it anew."""
        return super().retries(session, ids, Job.answers_from.is_(None), *conditions)

    def give_up(self, session: Session) -> list[str]:
        """End the work of every job that fails without end. Return their ids.

        The deadline is FINISHING_SECONDS after it should have ended. A job in progress is finished as failed, with the
        items that have ended; any other ends at once.
        """
        deadline = func.coalesce(Job.cancelling_at, Job.finalizing_at, Job.expires_at) + FINISHING_SECONDS
        statuses = ("validating", "in_progress", "finalizing", "cancelling")
        return [job.id for job in self.hopeless(session, statuses, deadline) if self._end(session, job)]

    def _end(self, session: Session, job: Job) -> bool:
        stages.cancel_batches(session, job.id)
        cancel_children(session, job.id)
        if job.status != "in_progress":
            return self.fail(session, job, "validated" if job.status == "validating" else "finished")
        values: dict[str, Any] = {"attempts": 0, "attempt_error": None, "lease_expires_at": time.time()}
        return self.fail(session, job, "continued", "finalizing", outcome="failed", **values)

    def expire(self, session: Session) -> list[str]:
        """Set the outcome of jobs whose window has passed. Return the ids of those whose items have to end first."""
        overdue = and_(Job.expires_at <= now(), Job.outcome.is_(None))
        idle = select(Job.id, Job.status).where(Job.status.in_(("waiting", "validating")), overdue)
        for job_id, status in session.execute(idle).all():
            self.transition(session, job_id, status, "finalizing", outcome="expired")
        statement = update(Job).where(Job.status == "in_progress", overdue).values(outcome="expired").returning(Job.id)
        return list(session.scalars(statement.execution_options(synchronize_session=False)))

    def any_ends(self, session: Session) -> bool:
        """True if a job is ending, or has ended and is to be finished again."""
        ending = select(Job.id).where(Job.status.in_(("finalizing", "cancelling")))
        amended = select(Job.id).where(_AMENDED)
        return any(session.scalar(jobs.limit(1)) is not None for jobs in (ending, amended))

    def claim_validatable(self, session: Session, pause: float) -> list[str]:
        """Claim jobs whose validation lost its message or its worker. Return their ids."""
        return claim(session, Job, Job.status == "validating", pause)

    def claim_advanceable(self, session: Session, pause: float) -> list[str]:
        """Claim jobs with items to end, in progress or cancelled, that nobody advances. Return their ids."""
        cancelled = and_(Job.status == "cancelling", UNFINISHED > 0)
        return claim(session, Job, or_(Job.status == "in_progress", cancelled), pause)

    def claim_finishable(self, session: Session, pause: float) -> list[str]:
        """Claim ending jobs whose batches and, if cancelled, items have ended. Return their ids.

        Likewise those that have ended, if an item was resolved since their artifacts were written.
        """
        busy = select(Batch.id).where(Batch.job_id == Job.id, Batch.status.in_(RUNNING))
        ending = or_(Job.status == "finalizing", and_(Job.status == "cancelling", UNFINISHED <= 0))
        return claim(session, Job, or_(and_(ending, ~busy.exists()), _AMENDED), pause)


JOBS = Jobs(Job, "job", JOB_TRANSITIONS, JOB_PAUSABLE, JOB_RUNNING)
# As functions, for those who deal with jobs only.
create, repeated, get, by_ids, page = JOBS.create, JOBS.repeated, JOBS.get, JOBS.by_ids, JOBS.page
retries = JOBS.retries
transition, cancel, control = JOBS.transition, JOBS.cancel, JOBS.control
reject, set_sla, expire, give_up, any_ends = JOBS.reject, JOBS.set_sla, JOBS.expire, JOBS.give_up, JOBS.any_ends
artifacts, find_artifact, add_artifact = JOBS.artifacts, JOBS.find_artifact, JOBS.add_artifact
claim_validatable, claim_finishable = JOBS.claim_validatable, JOBS.claim_finishable
claim_advanceable = JOBS.claim_advanceable


def locked(session: Session, project_id: str, job_id: str) -> Job:
    """Return a job that nobody else changes before the transaction ends. Raises NotFoundError as `get`."""
    job = get(session, project_id, job_id)
    session.refresh(job, with_for_update=True)
    return job


def hasten(session: Session, job_id: str) -> None:
    """Have housekeeping wake a job at once that was to rest, should no message do it."""
    session.execute(update(Job).where(Job.id == job_id, Job.holder.is_(None)).values(lease_expires_at=time.time()))


def hasten_changed(session: Session, job: Job) -> None:
    """Hasten a job whose record says that it was paused, resumed or cancelled since `job` was read."""
    now_is = session.execute(select(Job.status, Job.paused_at, Job.outcome).where(Job.id == job.id)).one()
    if tuple(now_is) != (job.status, job.paused_at, job.outcome):
        hasten(session, job.id)


def pause_sampled(session: Session, job: Job) -> None:
    """Pause a job whose sample has ended, with its batches, until a client resumes it."""
    stages.pause(session, job, PLAN)
    events.record(session, job, "job.planned")


def resolved(session: Session, job: Job, state: str) -> None:
    """Count an item that had ended as `stuck` or `failed` as completed. `job` is locked."""
    values = {state: getattr(Job, state) - 1, "completed": Job.completed + 1}
    if job.status in TERMINAL:
        values |= {"amendments": Job.amendments + 1, "unwritten": Job.unwritten + 1}
    session.execute(update(Job).where(Job.id == job.id).values(**values))


def sources(session: Session, job: Job, limit: int = 8) -> list[Job]:
    """Return the job whose answers this one takes, that one's source, and so on to `limit`."""
    earlier: list[Job] = []
    while job.answers_from is not None and len(earlier) < limit:
        source = session.get(Job, job.answers_from)
        if source is None:
            break
        earlier.append(source)
        job = source
    return earlier


def cancel_children(session: Session, job_id: str) -> None:
    """Request that the jobs stop that a job has started."""
    running = select(Job).where(Job.parent_id == job_id, Job.status.in_(JOB_RUNNING)).order_by(Job.id)
    for child in session.scalars(running.with_for_update()).all():
        cancel(session, child.project_id, child.id)


def validated(
    session: Session, job_id: str, *, items_sha256: str, total: int, options: Mapping[str, Any] | None = None
) -> bool:
    """Start a job, with options that validation has completed. False if it is no longer validating."""
    values: dict[str, Any] = {"items_sha256": items_sha256, "total": total, "attempts": 0, "attempt_error": None}
    values["sampling"] = func.coalesce(Job.sample_rows < total, false())
    if options is not None:
        values["options"] = options
    return transition(session, job_id, "validating", "in_progress", **values)
