"""/v1/files: upload, list, look at, download, delete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Literal

import flask
from flask import Blueprint, Response
from pydantic import BaseModel, Field

from batchyard.errors import RequestError
from store import files
from store.records import File
from webapp import wire
from webapp.requests import caller, current_house, validated

routes = Blueprint("files", __name__)

CHUNK_BYTES = 256 * 1024
BATCH_EXPIRES_AFTER = 30 * 86400
Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class UploadForm(BaseModel):
    purpose: Purpose
    expires_after: wire.ExpiresAfter | None = None


class ListFiles(BaseModel):
    after: str | None = None
    limit: int = Field(10000, ge=1, le=10000)
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


def to_wire(file: File) -> wire.FileObject:
    return wire.FileObject.model_validate(file, from_attributes=True)


@routes.post("/v1/files")
def create() -> dict[str, Any]:
    owner = caller()
    request = flask.request
    form: dict[str, Any] = {key: value for key, value in request.form.items() if "[" not in key}
    if any(key.startswith("expires_after") for key in request.form):
        form["expires_after"] = {
            name: request.form[key]
            for name in ("anchor", "seconds")
            if (key := f"expires_after[{name}]") in request.form
        }
    uploaded = request.files.get("file")
    upload = getattr(request, "upload", None)
    if uploaded is None or upload is None:
        raise RequestError("Missing required parameter: 'file'.", code="missing_required_parameter", param="file")
    options = validated(UploadForm, form)
    expires_after = options.expires_after.seconds if options.expires_after else None
    if expires_after is None and options.purpose == "batch":
        expires_after = BATCH_EXPIRES_AFTER
    upload.commit()
    name = PurePosixPath((uploaded.filename or "file").replace("\\", "/")).name or "file"
    with current_house().database.write() as session:
        file = files.create(
            session,
            owner.project_id,
            filename=name[-512:],
            purpose=options.purpose,
            size=upload.size,
            sha256=upload.sha256,
            expires_after=expires_after,
        )
    return to_wire(file).model_dump()


@routes.get("/v1/files")
def list_() -> dict[str, Any]:
    owner = caller()
    query = validated(ListFiles, dict(flask.request.args))
    with current_house().database.read() as session:
        found, more = files.page(
            session,
            owner.project_id,
            after=query.after,
            limit=query.limit,
            descending=query.order == "desc",
            purpose=query.purpose,
        )
    return wire.list_object([to_wire(file) for file in found], more)


def _get(file_id: str) -> File:
    owner = caller()
    with current_house().database.read() as session:
        return files.get(session, owner.project_id, file_id)


@routes.get("/v1/files/<file_id>")
def retrieve(file_id: str) -> dict[str, Any]:
    return to_wire(_get(file_id)).model_dump()


@routes.get("/v1/files/<file_id>/content")
def content(file_id: str) -> Response:
    file = _get(file_id)
    opened = current_house().artifacts.open(file.sha256)
    stream = opened.__enter__()  # before the first byte, so that a missing artifact is an error and not a cut answer

    def chunks() -> Iterator[bytes]:
        try:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
        finally:
            opened.__exit__(None, None, None)

    response = Response(chunks(), mimetype="application/octet-stream")
    response.content_length = file.bytes
    response.headers.set("Content-Disposition", "attachment", filename=file.filename)
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


@routes.delete("/v1/files/<file_id>")
def delete(file_id: str) -> dict[str, Any]:
    owner = caller()
    with current_house().database.write() as session:
        files.delete(session, owner.project_id, file_id)
    return wire.FileDeleted(id=file_id).model_dump()
