"""Files: names for content in the artifact store."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from batchyard.errors import NotFoundError
from store import listing
from store.records import Artifact, Batch, File, Job, JobArtifact, ScheduleRun, new_id, now

# Default lifetime of a batch's input, in seconds.
INPUT_EXPIRES_AFTER = 30 * 86400


def create(
    session: Session,
    project_id: str,
    *,
    filename: str,
    purpose: str,
    size: int,
    sha256: str,
    expires_after: int | None,
) -> File:
    """Create a file of `size` bytes. It expires after `expires_after` seconds, if that is set."""
    created_at = now()
    file = File(
        id=new_id("file-"),
        project_id=project_id,
        filename=filename,
        purpose=purpose,
        bytes=size,
        sha256=sha256,
        created_at=created_at,
        expires_at=created_at + expires_after if expires_after else None,
    )
    session.add(file)
    session.flush()
    return file


def create_output(session: Session, owner: Batch | Job, name: str, *, sha256: str, size: int) -> File:
    """Create the file of an artifact of a batch or a job."""
    return create(
        session,
        owner.project_id,
        filename=f"{owner.id}_{name}",
        purpose="batch_output",
        size=size,
        sha256=sha256,
        expires_after=owner.output_expires_after,
    )


def live(at: float) -> ColumnElement[bool]:
    """Return the condition for files that were neither deleted nor expired at `at` (Unix seconds)."""
    return or_(File.expires_at.is_(None), File.expires_at > at)


def find(session: Session, project_id: str, file_id: str) -> File | None:
    """Return a file of the project; None if it does not exist or has expired."""
    return session.scalar(select(File).where(File.id == file_id, File.project_id == project_id, live(now())))


def get(session: Session, project_id: str, file_id: str) -> File:
    """Return a file. Raises NotFoundError if the project has no such file."""
    file = find(session, project_id, file_id)
    if file is None:
        raise NotFoundError(f"No such File object: {file_id}", param="id")
    return file


def names(session: Session, project_id: str, file_ids: Collection[str]) -> dict[str, str]:
    """Return file names by id, even of deleted files; an unknown id names itself."""
    rows = session.execute(
        select(File.id, File.filename).where(File.id.in_(file_ids), File.project_id == project_id)
    ).all()
    return {file_id: file_id for file_id in file_ids} | dict(rows)


def lines(session: Session, file_ids: Collection[str]) -> dict[str, int]:
    """Return line counts by file id, for files that a batch has produced or has validated as its input."""
    inputs = select(Batch.input_file_id, func.max(Batch.total)).where(
        Batch.input_file_id.in_(file_ids), Batch.total > 0
    )
    outputs = select(Artifact.file_id, Artifact.lines).where(
        Artifact.file_id.in_(file_ids), Artifact.lines.is_not(None)
    )
    counts = dict(session.execute(inputs.group_by(Batch.input_file_id)).all())
    return counts | {file_id: count or 0 for file_id, count in session.execute(outputs)}


def page(
    session: Session,
    project_id: str,
    *,
    after: str | None,
    limit: int,
    descending: bool,
    purpose: str | None,
    of_runs: bool = True,
) -> tuple[Sequence[File], bool]:
    """Return files after the one with id `after`, by creation, and True if there are more.

    Args:
        of_runs: also those that runs of schedules have made.

    Raises:
        RequestError: `after` was never a file of the project. It may have been deleted since.
    """
    shown = live(now()) if purpose is None else and_(live(now()), File.purpose == purpose)
    if not of_runs:
        shown = and_(shown, ~_of_run())
    in_project = File.project_id == project_id
    return listing.page(session, File, in_project, after=after, limit=limit, descending=descending, shown=shown)


def _of_run() -> ColumnElement[bool]:
    """Return the condition for files of a schedule's runs: inputs made of its template, and artifacts."""
    begins = func.substr(File.filename, 1, func.length(ScheduleRun.schedule_id))
    of_batch = select(Artifact.file_id).join(ScheduleRun, ScheduleRun.batch_id == Artifact.batch_id)
    of_job = select(JobArtifact.file_id).join(ScheduleRun, ScheduleRun.job_id == JobArtifact.job_id)
    inputs = [
        select(owner.id).join(ScheduleRun, id_ == owner.id).where(begins == ScheduleRun.schedule_id)
        for owner, id_ in ((Batch, ScheduleRun.batch_id), (Job, ScheduleRun.job_id))
    ]
    return or_(
        of_batch.where(Artifact.file_id == File.id).exists(),
        of_job.where(JobArtifact.file_id == File.id).exists(),
        inputs[0].where(Batch.input_file_id == File.id).exists(),
        inputs[1].where(Job.input_file_id == File.id).exists(),
    )


def delete(session: Session, project_id: str, file_id: str) -> None:
    """Delete a file. Content that a batch needs stays. Raises NotFoundError."""
    file = get(session, project_id, file_id)
    file.expires_at = now()  # batches still refer to the row
