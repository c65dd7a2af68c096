"""Uploads: files that arrive in parts, until they are completed or cancelled, or an hour has passed."""

from collections.abc import Sequence
from typing import Literal, cast

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from batchyard.errors import ConflictError, NotFoundError, RequestError
from store import files
from store.records import File, FileUpload, UploadPart, added, now

UploadStatus = Literal["pending", "completed", "cancelled", "expired"]

EXPIRES_AFTER = 3600
"""Seconds for which an upload takes parts, as OpenAI's."""
MAX_PARTS = 10_000
"""Most parts of an upload, as of S3's."""
SENT_TWICE = 2
"""An upload's parts have at most so many times the bytes of its file: each can be replaced once."""


def create(
    session: Session, project_id: str, *, filename: str, purpose: str, size: int, file_expires_after: int | None
) -> FileUpload:
    """Create a pending upload of a file of `size` bytes. Raises RequestError without room for it."""
    files.check_room(session, project_id, size)
    values = {"filename": filename, "purpose": purpose, "bytes": size, "file_expires_after": file_expires_after}
    times = {"created_at": (at := now()), "expires_at": at + EXPIRES_AFTER}
    return added(session, FileUpload(project_id=project_id, **times, **values))


def get(session: Session, project_id: str, upload_id: str, *, lock: bool = False) -> FileUpload:
    """Return an upload, with `lock` until the transaction ends. Raises NotFoundError."""
    statement = select(FileUpload).where(FileUpload.id == upload_id, FileUpload.project_id == project_id)
    upload = session.scalar(statement.with_for_update() if lock else statement)
    if upload is None:
        raise NotFoundError(f"No such Upload object: {upload_id}", param="upload_id")
    return upload


def status(upload: FileUpload) -> UploadStatus:
    expired = upload.status == "pending" and upload.expires_at <= now()
    return "expired" if expired else cast(UploadStatus, upload.status)


def refuse_ended(upload: FileUpload, action: str) -> None:
    """Raise ConflictError if the upload is not pending."""
    ended = status(upload)
    if ended != "pending":
        message = f"Cannot {action} an upload with status '{ended}'; create a new one with POST /v1/uploads."
        raise ConflictError(message, param="upload_id")


def add_part(session: Session, project_id: str, upload_id: str, *, sha256: str, size: int) -> UploadPart:
    """Add stored content to a pending upload. Raises NotFoundError, ConflictError; RequestError above a limit."""
    upload = get(session, project_id, upload_id, lock=True)  # two concurrent sums would exceed the limit
    refuse_ended(upload, "add a part to")
    of_upload = UploadPart.upload_id == upload_id
    part = session.scalar(select(UploadPart).where(of_upload, UploadPart.sha256 == sha256))
    if part is not None:
        return part
    parts, stored = session.execute(
        select(func.count(), func.coalesce(func.sum(UploadPart.bytes), 0)).where(of_upload)
    ).one()
    if stored + size > SENT_TWICE * upload.bytes:
        message = (
            f"With this one of {size} bytes the upload's parts have {stored + size} bytes, and its file has "
            f"{upload.bytes}; cancel the upload and create one of the right size."
        )
        raise RequestError(message, code="invalid_value", param="data")
    if parts == MAX_PARTS:
        raise RequestError(f"An upload has at most {MAX_PARTS} parts; send larger ones.", code="invalid_value")
    files.check_room(session, project_id, size)
    return added(session, UploadPart(upload_id=upload_id, bytes=size, sha256=sha256))


def chosen_parts(session: Session, upload: FileUpload, part_ids: Sequence[str]) -> list[UploadPart]:
    """Return an upload's parts by these ids. Raises RequestError if they are not the whole file."""
    of_upload = session.scalars(select(UploadPart).where(UploadPart.upload_id == upload.id))
    by_id = {part.id: part for part in of_upload}
    for number, part_id in enumerate(part_ids):
        if part_id not in by_id:
            message = f"The upload has no part '{part_id}'; name its parts by the ids that adding them answered."
            raise RequestError(message, code="invalid_value", param=f"part_ids.{number}")
    parts = [by_id[part_id] for part_id in part_ids]
    size = sum(part.bytes for part in parts)
    if size != upload.bytes:
        message = (
            f"The parts have {size} bytes, and the upload was created for {upload.bytes}; name all parts, or cancel "
            "the upload and create one of the right size."
        )
        raise RequestError(message, code="invalid_value", param="part_ids")
    return parts


def refuse_other(upload: FileUpload, part_ids: Sequence[str]) -> None:
    """Raise ConflictError if the upload has ended, but not as the file of these parts."""
    if upload.status != "completed" or upload.part_ids != list(part_ids):
        refuse_ended(upload, "complete")


def complete(
    session: Session, project_id: str, upload_id: str, part_ids: Sequence[str], *, sha256: str
) -> tuple[FileUpload, File | None]:
    """Complete an upload with stored content, and return it with its file.

    One that was completed with the same parts meanwhile stays as it is. One that has just expired is completed, too:
    it had not when its parts were read. Raises NotFoundError, ConflictError.
    """
    upload = get(session, project_id, upload_id, lock=True)
    if upload.status != "pending":
        refuse_other(upload, part_ids)
        return upload, file_of(session, upload)
    file = files.create(
        session,
        project_id,
        filename=upload.filename,
        purpose=upload.purpose,
        size=upload.bytes,
        sha256=sha256,
        expires_after=upload.file_expires_after,
    )
    upload.part_ids, upload.file_id = list(part_ids), file.id
    _end(session, upload, "completed")
    return upload, file


def file_of(session: Session, upload: FileUpload) -> File | None:
    """Return the file of a completed upload; None if it was deleted."""
    return None if upload.file_id is None else files.find(session, upload.project_id, upload.file_id)


def cancel(session: Session, project_id: str, upload_id: str) -> FileUpload:
    """Cancel an upload. Cancelling it twice changes nothing. Raises NotFoundError; ConflictError if it has ended."""
    upload = get(session, project_id, upload_id, lock=True)
    if upload.status != "cancelled":
        refuse_ended(upload, "cancel")
        _end(session, upload, "cancelled")
    return upload


def _end(session: Session, upload: FileUpload, ended: str) -> None:
    """End a pending upload. Its parts are needed no more."""
    upload.status = ended
    files.erase_content(session, session.scalars(select(UploadPart.sha256).where(UploadPart.upload_id == upload.id)))
    session.execute(delete(UploadPart).where(UploadPart.upload_id == upload.id))


def abandoned(at: float) -> ColumnElement[bool]:
    """Return the condition for parts whose upload had expired for as long as it took parts at `at` (Unix seconds).

    Those of one that has just expired may be about to become a file.
    """
    expired = select(FileUpload.id).where(
        FileUpload.id == UploadPart.upload_id, FileUpload.expires_at <= at - EXPIRES_AFTER
    )
    return expired.exists()
