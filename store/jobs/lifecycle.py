"""Lifecycle: create and find jobs, and change their status by the table of allowed transitions."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, Literal

from sqlalchemy import and_, func, or_, select, true, update
from sqlalchemy.orm import Session

from batchyard import durations
from batchyard.errors import ConflictError, NotFoundError
from batchyard.statuses import JOB_PAUSABLE, JOB_RUNNING, JOB_TRANSITIONS, PAUSABLE, RUNNING, TERMINAL
from store import events, files, listing
from store.batches import FINISHING_SECONDS, MESSAGE_SECONDS, set_pause
from store.database import changed
from store.jobs import stages
from store.keys import Caller
from store.leases import ATTEMPTS, claim
from store.records import Batch, File, Job, JobArtifact, Sla, new_id, now

ENDED_AT = func.coalesce(Job.completed_at, Job.expired_at, Job.cancelled_at, Job.failed_at)
"""The end of an ended job, in SQL."""
UNFINISHED = Job.total - (Job.completed + Job.failed + Job.stuck + Job.expired_items + Job.cancelled_items)
"""The items of a job that have not ended, in SQL."""

_AMENDED = and_(Job.unwritten > 0, Job.attempts < ATTEMPTS)


def create(
    session: Session, job: Job, *, due_after: int | None = None, idempotency: tuple[str, str] | None = None
) -> Job:
    """Create a job from its unsaved record: `waiting` if it depends on others, else `validating`.

    `expires_at` and `due_at`, if the record has none, follow from its window.

    Args:
        due_after: seconds from now until it is due; None for the end of its window.
        idempotency: the client's key and the SHA-256 of its request, see `repeated`.
    """
    job.id, job.created_at = new_id("job_"), now()
    if job.expires_at is None:
        job.expires_at = job.created_at + durations.seconds(job.completion_window)
    if job.due_at is None:
        job.due_at = job.expires_at if due_after is None else job.created_at + due_after
    job.status = "waiting" if job.depends_on else "validating"
    job.idempotency_key, job.idempotency_sha256 = idempotency or (None, None)
    job.lease_expires_at = time.time() + MESSAGE_SECONDS
    session.add(job)
    session.flush()
    return job


def repeated(session: Session, project_id: str, idempotency: tuple[str, str]) -> Job | None:
    """Return the job that was created with this idempotency key, or None.

    Raises:
        ConflictError: that job came from another request.
    """
    key, sha256 = idempotency
    job = session.scalar(select(Job).where(Job.project_id == project_id, Job.idempotency_key == key))
    if job is not None and job.idempotency_sha256 != sha256:
        raise ConflictError(
            "This Idempotency-Key was used with another body; use a new key for a new job.",
            code="idempotency_key_reused",
        )
    return job


def get(session: Session, project_id: str, job_id: str) -> Job:
    """Return a job. Raises NotFoundError if the project has no such job."""
    job = session.scalar(select(Job).where(Job.id == job_id, Job.project_id == project_id))
    if job is None:
        raise NotFoundError(f"No job found with id '{job_id}'.", param="job_id")
    return job


def some(session: Session, project_id: str, job_ids: Collection[str]) -> Sequence[Job]:
    """Return those of the project's jobs that have one of these ids, in any order."""
    return session.scalars(select(Job).where(Job.project_id == project_id, Job.id.in_(job_ids))).all()


def locked(session: Session, project_id: str, job_id: str) -> Job:
    """Return a job that nobody else changes before the transaction ends. Raises NotFoundError as `get`."""
    job = get(session, project_id, job_id)
    session.refresh(job, with_for_update=True)
    return job


def hasten(session: Session, job_id: str) -> None:
    """Have housekeeping wake a job at once that was to rest, should no message do it."""
    session.execute(update(Job).where(Job.id == job_id, Job.holder.is_(None)).values(lease_expires_at=time.time()))


def resolved(session: Session, job: Job, state: str) -> None:
    """Count an item that had ended as `stuck` or `failed` as completed. `job` is locked."""
    values = {state: getattr(Job, state) - 1, "completed": Job.completed + 1}
    if job.status in TERMINAL:
        values |= {"amendments": Job.amendments + 1, "unwritten": Job.unwritten + 1}
    session.execute(update(Job).where(Job.id == job.id).values(**values))


def sources(session: Session, job: Job, limit: int = 8) -> list[Job]:
    """Return the job whose answers this one takes, the one whose answers that took, and so on, at most `limit`."""
    earlier: list[Job] = []
    while job.answers_from is not None and len(earlier) < limit:
        source = session.get(Job, job.answers_from)
        if source is None:
            break
        earlier.append(source)
        job = source
    return earlier


def page(
    session: Session,
    project_id: str,
    *,
    after: str | None,
    limit: int,
    status: str | None = None,
    recipe: str | None = None,
    parent_id: str | None = None,
) -> tuple[Sequence[Job], bool]:
    """Return the project's jobs after the one with id `after`, newest first, and True if there are more.

    Args:
        status, recipe, parent_id: only jobs with that one; None for all.

    Raises:
        RequestError: `after` is not a job of the project.
    """
    wanted = ((Job.status, status), (Job.recipe, recipe), (Job.parent_id, parent_id))
    shown = and_(true(), *(column == value for column, value in wanted if value is not None))
    in_project = Job.project_id == project_id
    return listing.page(session, Job, in_project, after=after, limit=limit, descending=True, shown=shown)


def transition(session: Session, job_id: str, before: str, after: str, **values: Any) -> bool:
    """Compare-and-set `status` from `before` to `after`, with its timestamp. False if it was not `before`.

    A terminal status emits an event.
    """
    if after not in JOB_TRANSITIONS[before]:
        raise ValueError(f"a job never goes from {before} to {after}")
    timestamp: dict[str, Any] = {} if after == "validating" else {f"{after}_at": now()}
    if after not in JOB_PAUSABLE:
        timestamp |= {"paused_at": None, "paused_by": None}
    statement = update(Job).where(Job.id == job_id, Job.status == before)
    if not changed(session, statement.values(status=after, **timestamp, **values)):
        return False
    if after in TERMINAL:
        events.record(session, session.get_one(Job, job_id), f"job.{after}")
    return True


def cancel(session: Session, project_id: str, job_id: str, by: Caller | None = None) -> Job:
    """Request that a job stops, with the jobs that it has started. What its items have is kept.

    Cancelling it twice changes nothing.

    Args:
        by: who requests it; None for a schedule.

    Raises:
        NotFoundError: the project has no such job.
        ConflictError: the job has ended.
    """
    job = get(session, project_id, job_id)
    while job.status not in ("cancelling", "cancelled"):
        if job.status in TERMINAL:
            raise ConflictError(f"Cannot cancel a job with status '{job.status}'.", param="job_id")
        # Items that have all ended keep their outcome.
        values = {} if job.outcome == "completed" else {"outcome": "cancelled"}
        if transition(session, job_id, job.status, "cancelling", **values):
            events.act(session, by, "job.cancelling", job)
        hasten(session, job_id)
        session.refresh(job)
    cancel_children(session, job_id)
    return job


def cancel_children(session: Session, job_id: str) -> None:
    """Request that the jobs stop that a job has started."""
    running = select(Job).where(Job.parent_id == job_id, Job.status.in_(JOB_RUNNING)).order_by(Job.id)
    for child in session.scalars(running.with_for_update()).all():
        cancel(session, child.project_id, child.id)


def pause(session: Session, by: Caller, job_id: str) -> Job:
    """Let no request of a job be sent any more: its batches are paused, also those to come. Its window goes on.

    So are the jobs that it has started. What its items do without an engine goes on. Pausing it twice changes nothing.

    Raises:
        NotFoundError: the project has no such job.
        ConflictError: its items have ended, or it was cancelled.
    """
    return _set_pause(session, by, job_id, "pause")


def resume(session: Session, by: Caller, job_id: str) -> Job:
    """Let a paused job go on. It changes nothing if the job is not paused. Raises as `pause` does."""
    return _set_pause(session, by, job_id, "resume")


def _set_pause(session: Session, by: Caller, job_id: str, verb: Literal["pause", "resume"]) -> Job:
    job = get(session, by.project_id, job_id)
    if values := set_pause(session, by, job, verb, JOB_PAUSABLE):
        children = update(Job).where(Job.parent_id == job_id, Job.status.in_(JOB_PAUSABLE))
        session.execute(children.values(**values))
        jobs = select(Job.id).where(or_(Job.id == job_id, Job.parent_id == job_id))
        of_jobs = update(Batch).where(Batch.job_id.in_(jobs), Batch.status.in_(PAUSABLE))
        session.execute(of_jobs.values(**values))
        hasten(session, job_id)
        session.refresh(job)
    return job


def validated(session: Session, job_id: str, *, items_sha256: str, total: int) -> bool:
    """Start a job whose items are known. False if it is no longer validating."""
    values = {"items_sha256": items_sha256, "total": total, "attempts": 0, "attempt_error": None}
    return transition(session, job_id, "validating", "in_progress", **values)


def reject(session: Session, job_id: str, errors: list[dict[str, Any]]) -> None:
    """End a job whose input is invalid, with its errors. It does nothing if the window has passed meanwhile."""
    if not transition(session, job_id, "validating", "failed", errors=errors):
        transition(session, job_id, "cancelling", "cancelled", errors=errors)


def give_up(session: Session) -> list[str]:
    """End the work of every job that fails without end. Return their ids.

    It has failed ATTEMPTS times in a row, or it fails FINISHING_SECONDS after it should have ended. A job in progress
    is finished as failed, with the items that have ended; any other ends at once.
    """
    deadline = func.coalesce(Job.cancelling_at, Job.finalizing_at, Job.expires_at) + FINISHING_SECONDS
    hopeless = or_(Job.attempts >= ATTEMPTS, and_(Job.attempt_error.is_not(None), deadline <= time.time()))
    working = Job.status.in_(("validating", "in_progress", "finalizing", "cancelling"))
    jobs = session.scalars(select(Job).where(working, hopeless).with_for_update()).all()
    return [job.id for job in jobs if _end(session, job)]


def _end(session: Session, job: Job) -> bool:
    """End a job that fails without end. False if it has another status by now."""
    work = {"validating": "validated", "in_progress": "continued"}.get(job.status, "finished")
    if job.attempts >= ATTEMPTS:
        message = f"The job could not be {work} in {job.attempts} attempts: {job.attempt_error}"
    else:
        message = f"The job was not {work} in time; the last attempt failed: {job.attempt_error}"
    code = {"validated": "validation_failed", "continued": "advance_failed"}.get(work, "finishing_failed")
    errors = [*(job.errors or []), {"code": code, "line": None, "message": message, "param": None}]
    values: dict[str, Any] = {"errors": errors, "epoch": Job.epoch + 1, "holder": None}
    if job.status == "in_progress":
        values |= {"outcome": "failed", "attempts": 0, "attempt_error": None, "lease_expires_at": time.time()}
        after = "finalizing"
    else:
        after = "cancelled" if job.status == "cancelling" else "failed"
    stages.cancel_batches(session, job.id)
    cancel_children(session, job.id)
    return transition(session, job.id, job.status, after, **values)


def expire(session: Session) -> list[str]:
    """Set the outcome of every job whose completion window has passed, once.

    Jobs without items are finalized.

    Returns:
        The ids of those in progress, whose items have to end before they are finalized.
    """
    overdue = and_(Job.expires_at <= now(), Job.outcome.is_(None))
    idle = select(Job.id, Job.status).where(Job.status.in_(("waiting", "validating")), overdue)
    for job_id, status in session.execute(idle).all():
        transition(session, job_id, status, "finalizing", outcome="expired")
    statement = update(Job).where(Job.status == "in_progress", overdue).values(outcome="expired").returning(Job.id)
    return list(session.scalars(statement.execution_options(synchronize_session=False)))


def claim_validatable(session: Session, pause: float) -> list[str]:
    """Claim jobs whose validation lost its message or its worker. Return their ids.

    A claimed job is not returned again for `pause` seconds.
    """
    return claim(session, Job, Job.status == "validating", pause)


def claim_advanceable(session: Session, pause: float) -> list[str]:
    """Claim jobs with items to end, in progress or cancelled, that nobody advances. Return their ids.

    A claimed job is not returned again for `pause` seconds.
    """
    return claim(
        session, Job, or_(Job.status == "in_progress", and_(Job.status == "cancelling", UNFINISHED > 0)), pause
    )


def any_ends(session: Session) -> bool:
    """True if a job is ending, or has ended and is to be finished again."""
    ending = select(Job.id).where(Job.status.in_(("finalizing", "cancelling")))
    amended = select(Job.id).where(_AMENDED)
    return any(session.scalar(jobs.limit(1)) is not None for jobs in (ending, amended))


def claim_finishable(session: Session, pause: float) -> list[str]:
    """Claim jobs that can be finished now: ending, with ended batches, and if cancelled, without an item to end.

    Likewise those that have ended, if an item was resolved since their artifacts were written.

    A claimed job is not returned again for `pause` seconds, so that one caller starts its finishing.
    """
    busy = select(Batch.id).where(Batch.job_id == Job.id, Batch.status.in_(RUNNING))
    ending = or_(Job.status == "finalizing", and_(Job.status == "cancelling", UNFINISHED <= 0))
    return claim(session, Job, or_(and_(ending, ~busy.exists()), _AMENDED), pause)


def set_sla(session: Session, job: Job, state: Sla, **data: Any) -> bool:
    """Compare-and-set the SLA state of a job that has not ended.

    Returns:
        True the first time a state is reached. An event with `data` is emitted then.
    """
    unchanged = (Job.id == job.id, Job.sla == job.sla, Job.status.in_(JOB_RUNNING))
    if not changed(session, update(Job).where(*unchanged).values(sla=state)):
        return False
    job.sla = state
    if events.recorded(session, job, f"job.{state}"):
        return False
    events.record(session, job, f"job.{state}", **data)
    return True


def artifacts(session: Session, job_ids: Sequence[str]) -> dict[str, list[tuple[JobArtifact, File]]]:
    """Return the artifacts of each job, sorted by name, by job id."""
    rows = session.execute(
        select(JobArtifact, File)
        .join(File, File.id == JobArtifact.file_id)
        .where(JobArtifact.job_id.in_(job_ids))
        .order_by(JobArtifact.name)
    )
    by_job: dict[str, list[tuple[JobArtifact, File]]] = {job_id: [] for job_id in job_ids}
    for artifact, file in rows:
        by_job[artifact.job_id].append((artifact, file))
    return by_job


def add_artifact(session: Session, job: Job, name: str, sha256: str, size: int, lines: int | None) -> File:
    """Create a file for content and make it an artifact of the job.

    An existing one of that name gets the content while the job runs. The files of a job that has ended are final, so
    the artifact gets a new file then.
    """
    existing = session.get(JobArtifact, (job.id, name))
    if existing is not None and job.status not in TERMINAL:
        existing.lines = lines
        file = session.get_one(File, existing.file_id)
        file.sha256, file.bytes = sha256, size
        return file
    file = files.create_output(session, job, name, sha256=sha256, size=size)
    if existing is None:
        session.add(JobArtifact(job_id=job.id, name=name, file_id=file.id, lines=lines))
    else:
        existing.file_id, existing.lines = file.id, lines
    return file
