"""Files: names for content in the artifact store."""

import time
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from batchyard.errors import NotFoundError, RequestError
from batchyard.statuses import RUNNING
from store import listing, projects
from store.database import insert
from store.records import Append, Batch, ErasedContent, File, FileUpload, Job, UploadPart, added, now

# Default lifetime of a batch's input, in seconds.
INPUT_EXPIRES_AFTER = 30 * 86400
STORAGE_LIMIT = "storage_limit_exceeded"
"""The code of what would exceed the bytes that a project may store."""


class Room(NamedTuple):
    """What a project stores, and the most that it may, in bytes. None: no limit."""

    stored: int
    limit: int | None

    def check(self, size: int) -> None:
        """Raise RequestError, in OpenAI's words, unless `size` more bytes may be stored."""
        if self.limit is not None and self.stored + size > self.limit:
            raise RequestError(
                f"You have exceeded your file storage quota. The project's files have {self.stored} bytes, this adds "
                f"at least {size}, and its limit is {self.limit} bytes. Please delete files, or ask an administrator "
                "to raise the project's 'max_stored_bytes'.",
                code=STORAGE_LIMIT,
            )


def room(session: Session, project_id: str, *, lock: bool = False) -> Room:
    """Return what a project stores: its files, parts of uploads, and requests of open batches.

    Each file counts, also where two have the same content. `lock` as in `projects.get`.
    """
    own = projects.get(session, project_id, lock=lock).max_stored_bytes
    parts = select(func.sum(UploadPart.bytes)).join(FileUpload).where(FileUpload.project_id == project_id)
    sums = (sum_of_files(project_id), parts, sum_of_appended(project_id))
    stored = sum(int(session.scalar(each) or 0) for each in sums)
    return Room(stored, session.info["max_stored_bytes"] if own is None else own)


def sum_of_appended(project_id: str) -> Select[int]:
    of_open = and_(Batch.project_id == project_id, Batch.status.in_(RUNNING), Batch.input_file_id == "")
    return select(func.sum(Append.bytes)).join(Batch).where(of_open)


def sum_of_files(project_id: str) -> Select[int]:
    return select(func.sum(File.bytes)).where(File.project_id == project_id, live(now()))


def check_room(session: Session, project_id: str, size: int) -> None:
    """Raise RequestError unless a project may store `size` more bytes, in this transaction."""
    room(session, project_id, lock=True).check(size)  # two concurrent sums would exceed the limit


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
    at, values = now(), {"filename": filename, "purpose": purpose, "bytes": size, "sha256": sha256}
    expires_at = at + expires_after if expires_after else None
    return added(session, File(project_id=project_id, created_at=at, expires_at=expires_at, **values))


def create_output(session: Session, owner: Batch | Job, name: str, *, sha256: str, size: int) -> File:
    return create(
        session,
        owner.project_id,
        filename=f"{owner.id}_{name}",
        purpose="batch_output",
        size=size,
        sha256=sha256,
        expires_after=owner.output_expires_after,
    )


def deleted_at(file: File, retention: float) -> int | None:
    """Return when a file is deleted: as it says itself, and an output `retention` seconds after it was written."""
    if file.purpose != "batch_output":
        return file.expires_at
    with_its_work = int(file.created_at + retention)
    return with_its_work if file.expires_at is None else min(file.expires_at, with_its_work)


def live(at: float) -> ColumnElement[bool]:
    """Return the condition for files that were neither deleted nor expired at `at` (Unix seconds)."""
    return or_(File.expires_at.is_(None), File.expires_at > at)


def find(session: Session, project_id: str, file_id: str) -> File | None:
    return session.scalar(select(File).where(File.id == file_id, File.project_id == project_id, live(now())))


def get(session: Session, project_id: str, file_id: str) -> File:
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


def page(
    session: Session,
    project_id: str,
    *,
    after: str | None,
    limit: int,
    descending: bool,
    purpose: str | None,
) -> tuple[Sequence[File], bool]:
    """Return files by creation, and if more follow. `after` may be deleted by now. Raises RequestError."""
    shown = live(now()) if purpose is None else and_(live(now()), File.purpose == purpose)
    in_project = File.project_id == project_id
    return listing.page(session, File, in_project, after=after, limit=limit, descending=descending, shown=shown)


def delete(session: Session, project_id: str, file_id: str) -> None:
    """Delete a file. Content that a batch needs stays. Raises NotFoundError."""
    file = get(session, project_id, file_id)
    file.expires_at = now()  # batches still refer to the row


def erase_content(session: Session, hashes: Iterable[str | None]) -> None:
    """Have content (SHA-256) removed soon, unless a record refers to it then. What is null or empty names none."""
    rows = [{"sha256": sha256, "erased_at": time.time()} for sha256 in sorted(set(filter(None, hashes)))]
    if rows:
        statement = insert(session, ErasedContent)
        again = {"erased_at": statement.excluded.erased_at}
        session.execute(statement.on_conflict_do_update(index_elements=["sha256"], set_=again), rows)
