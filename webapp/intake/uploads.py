"""/v1/uploads: a large file in parts, as OpenAI's clients send it."""

import hashlib
from collections.abc import Sequence
from typing import cast

import flask
from flask import Blueprint

from batchyard.errors import RequestError, TooLargeError
from store.artifacts import ArtifactWriter
from store.intake import uploads
from store.records import File, FileUpload, UploadPart
from webapp import files
from webapp.document import operation
from webapp.requests import TOO_LARGE, StreamedRequest, UploadLimit, caller, current_context, form, parse_body, writing
from webapp.wire.files import CompleteUpload, CreateUpload, PartForm, UploadObject, UploadPartObject

routes = Blueprint("uploads", __name__)

MAX_PART_BYTES = 64 * 1024 * 1024
COPY_BYTES = 1024 * 1024


def to_wire(upload: FileUpload, file: File | None = None) -> UploadObject:
    same = {name: getattr(upload, name) for name in ("id", "bytes", "created_at", "expires_at", "filename", "purpose")}
    return UploadObject(**same, status=uploads.status(upload), file=None if file is None else files.to_wire(file))


@routes.post("/v1/uploads")
@operation(UploadObject, json=CreateUpload, refusals=(413,))
def create() -> UploadObject:
    """Begin a file that is sent in parts, within an hour."""
    owner, context = caller(), current_context()
    body = parse_body(CreateUpload)
    most = context.settings.max_file_bytes
    if body.bytes > most:
        message = f"The file is larger than {most} bytes; {TOO_LARGE}."
        raise TooLargeError(message, code="file_too_large", param="bytes")
    with context.database.write() as session:
        upload = uploads.create(
            session,
            owner.project_id,
            filename=files.base_name(body.filename),
            purpose=body.purpose,
            size=body.bytes,
            file_expires_after=files.expires_after(body),
        )
    return to_wire(upload)


@routes.post("/v1/uploads/<upload_id>/parts")
@operation(UploadPartObject, form=PartForm, refusals=(404, 409, 413))
def add_part(upload_id: str) -> UploadPartObject:
    """Add a part of at most 64 MiB. Parts may come in any order; the same bytes again are the same part."""
    owner, context = caller(), current_context()
    with context.database.read() as session:  # before its bytes are read
        uploads.refuse_ended(uploads.get(session, owner.project_id, upload_id), "add a part to")
    request = cast(StreamedRequest, flask.request)
    request.upload_limit = UploadLimit(MAX_PART_BYTES, "part", "send it as several parts", "data")
    data = files.uploaded("data")
    if data is None:
        raise files.missing("data")
    content, _ = data
    form(PartForm)
    content.commit()
    with context.database.write() as session:
        part = uploads.add_part(session, owner.project_id, upload_id, sha256=content.sha256, size=content.size)
    return UploadPartObject.model_validate(part, from_attributes=True)


@routes.post("/v1/uploads/<upload_id>/complete")
@operation(UploadObject, json=CompleteUpload, refusals=(404, 409, 413))
def complete(upload_id: str) -> UploadObject:
    """Make a file of an upload's parts. The same request again answers with the same file."""
    owner, context = caller(), current_context()
    body = parse_body(CompleteUpload)
    with context.database.read() as session:
        upload = uploads.get(session, owner.project_id, upload_id)
        if upload.status == "completed":
            uploads.refuse_other(upload, body.part_ids)
            return to_wire(upload, uploads.file_of(session, upload))
        uploads.refuse_ended(upload, "complete")
        parts = uploads.chosen_parts(session, upload, body.part_ids)
    content = _joined(parts, body.md5)
    with context.database.write() as session:
        upload, file = uploads.complete(session, owner.project_id, upload_id, body.part_ids, sha256=content.sha256)
    return to_wire(upload, file)


def _joined(parts: Sequence[UploadPart], md5: str | None) -> ArtifactWriter:
    """Store the content of parts as one. Raises RequestError if it has another MD5."""
    artifacts, digest = current_context().artifacts, hashlib.md5(usedforsecurity=False)
    with artifacts.create() as joined:
        for part in parts:
            with artifacts.open(part.sha256) as source:
                while chunk := source.read(COPY_BYTES):
                    joined.write(chunk)
                    if md5 is not None:
                        digest.update(chunk)
        if md5 is not None and digest.hexdigest() != md5.lower():
            remedy = "The upload is still pending: name its parts in another order, or send the damaged one again."
            message = f"The parts have the MD5 {digest.hexdigest()} in this order, not {md5}. {remedy}"
            raise RequestError(message, code="invalid_value", param="md5")
    return joined


@routes.post("/v1/uploads/<upload_id>/cancel")
@operation(UploadObject, refusals=(404, 409))
def cancel(upload_id: str) -> UploadObject:
    """Cancel an upload. Its parts are deleted."""
    with writing() as (session, owner):
        return to_wire(uploads.cancel(session, owner.project_id, upload_id))
