"""Files: names for content in the artifact store."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from batchyard.errors import NotFoundError
from batchyard.statuses import TERMINAL
from store import listing
from store.records import Artifact, Batch, File, new_id, now

# Seconds after which a batch's input expires, unless the client says otherwise.
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
    """A new file of `size` bytes, gone `expires_after` seconds from now if that is given."""
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


def live(moment: float) -> ColumnElement[bool]:
    """Files that were neither deleted nor expired at `moment` (Unix seconds), of any project."""
    return or_(File.expires_at.is_(None), File.expires_at > moment)


def find(session: Session, project_id: str, file_id: str) -> File | None:
    """The project's file, unless there is none or it has expired."""
    return session.scalar(select(File).where(File.id == file_id, File.project_id == project_id, live(now())))


def get(session: Session, project_id: str, file_id: str) -> File:
    """Raises NotFoundError when the project has no such file."""
    file = find(session, project_id, file_id)
    if file is None:
        raise NotFoundError(f"No such File object: {file_id}", param="id")
    return file


def names(session: Session, file_ids: Collection[str]) -> dict[str, str]:
    """What files are called, by id, also those that are gone."""
    return dict(session.execute(select(File.id, File.filename).where(File.id.in_(file_ids))).all())


def lines(session: Session, file_ids: Collection[str]) -> dict[str, int]:
    """How many lines files have, by id: of those that a batch has produced, or was made of and has counted."""
    read = select(Batch.input_file_id, func.max(Batch.total)).where(Batch.input_file_id.in_(file_ids), Batch.total > 0)
    made = select(Artifact.file_id, Artifact.lines).where(Artifact.file_id.in_(file_ids), Artifact.lines.is_not(None))
    counted = dict(session.execute(read.group_by(Batch.input_file_id)).all())
    return counted | {file_id: lines or 0 for file_id, lines in session.execute(made)}


def find_artifact(session: Session, project_id: str, batch_id: str, name: str) -> File | None:
    """The file that an ended batch of the project has produced under that name. It never changes."""
    return session.scalar(
        select(File)
        .join(Artifact, Artifact.file_id == File.id)
        .join(Batch, Batch.id == Artifact.batch_id)
        .where(
            Artifact.batch_id == batch_id,
            Artifact.name == name,
            File.project_id == project_id,
            Batch.status.in_(TERMINAL),
            live(now()),
        )
    )


def page(
    session: Session, project_id: str, *, after: str | None, limit: int, descending: bool, purpose: str | None
) -> tuple[Sequence[File], bool]:
    """Files after the one with id `after`, which may be gone by now, by creation; whether there are more.

    Raises:
        RequestError: `after` was never a file of the project.
    """
    shown = live(now()) if purpose is None else and_(live(now()), File.purpose == purpose)
    own = File.project_id == project_id
    return listing.page(session, File, own, after=after, limit=limit, descending=descending, shown=shown)


def delete(session: Session, project_id: str, file_id: str) -> None:
    """Remove the name; content that a batch pins stays. Raises NotFoundError."""
    file = get(session, project_id, file_id)
    file.expires_at = now()  # the row stays for the batches that name it
