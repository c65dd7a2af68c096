"""Files: names for content in the artifact store."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from batchyard.errors import NotFoundError
from store import listing
from store.records import File, new_id, now


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


def _live(project_id: str) -> ColumnElement[bool]:
    return and_(File.project_id == project_id, or_(File.expires_at.is_(None), File.expires_at > now()))


def find(session: Session, project_id: str, file_id: str) -> File | None:
    """The project's file, unless there is none or it has expired."""
    return session.scalar(select(File).where(File.id == file_id, _live(project_id)))


def get(session: Session, project_id: str, file_id: str) -> File:
    """Raises NotFoundError when the project has no such file."""
    file = find(session, project_id, file_id)
    if file is None:
        raise NotFoundError(f"No such File object: {file_id}", param="id")
    return file


def page(
    session: Session, project_id: str, *, after: str | None, limit: int, descending: bool, purpose: str | None
) -> tuple[Sequence[File], bool]:
    """Files after the one with id `after`, by creation; whether there are more."""
    scope = _live(project_id)
    if purpose is not None:
        scope = and_(scope, File.purpose == purpose)
    return listing.page(session, File, scope, after=after, limit=limit, descending=descending)


def delete(session: Session, project_id: str, file_id: str) -> None:
    """Remove the name; content that a batch pins stays. Raises NotFoundError."""
    file = get(session, project_id, file_id)
    file.expires_at = now()  # the row stays for the batches that name it
