"""/v1/files: upload, list, retrieve, download, delete."""

import itertools
from contextlib import ExitStack
from functools import partial
from pathlib import PurePosixPath
from urllib.parse import quote

import flask
from flask import Blueprint, Response

from batchyard.errors import ArtifactMissing, RequestError
from store import events, files, projects
from store.files import INPUT_EXPIRES_AFTER
from store.records import File
from webapp.document import operation
from webapp.requests import Upload, caller, current_context, form, query, reading, writing
from webapp.wire.files import FileDeleted, FileObject, FilePage, ListFiles, UploadForm, UploadOptions

routes = Blueprint("files", __name__)

CHUNK_BYTES = 256 * 1024


def to_wire(file: File, retention: float | None = None) -> FileObject:
    """Return a file as it crosses the wire. `retention`: that of the project's outputs, which is looked up if None."""
    if retention is None:
        retention = output_retention() if file.purpose == "batch_output" else 0.0
    shown = FileObject.model_validate(file, from_attributes=True)
    return shown.model_copy(update={"expires_at": files.deleted_at(file, retention)})


def output_retention() -> float:
    """Return after how many seconds outputs of the caller's project are deleted with their batch or job."""
    context = current_context()
    with context.database.read() as session:
        minutes = projects.get(session, caller().project_id).zero_retention_minutes
    return context.settings.retention if minutes is None else min(context.settings.retention, 60 * minutes)


def uploaded(field: str = "file") -> tuple[Upload, str] | None:
    """Return the file of the form, not committed yet, and its base name; None if none was sent."""
    part = flask.request.files.get(field)
    upload = getattr(flask.request, "upload", None)
    if part is None or upload is None:
        return None
    return upload, base_name(part.filename or "")


def base_name(path: str) -> str:
    """Return the name of a file that a client calls `path`, printable and without folders."""
    name = PurePosixPath(path.replace("\\", "/")).name
    return "".join(character for character in name if character.isprintable())[-255:] or "file"


def missing(param: str) -> RequestError:
    return RequestError(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


def expires_after(options: UploadOptions) -> int | None:
    """Return after how many seconds a file expires."""
    if options.expires_after is not None:
        return options.expires_after.seconds
    return INPUT_EXPIRES_AFTER if options.purpose == "batch" else None


@routes.post("/v1/files")
@operation(FileObject, form=UploadForm, refusals=(413,))
def create() -> FileObject:
    """Upload a file."""
    owner = caller()
    file_and_name = uploaded()
    if file_and_name is None:
        raise missing("file")
    upload, name = file_and_name
    options = form(UploadForm)
    upload.commit()
    with current_context().database.write() as session:
        files.check_room(session, owner.project_id, upload.size)
        file = files.create(
            session,
            owner.project_id,
            filename=name,
            purpose=options.purpose,
            size=upload.size,
            sha256=upload.sha256,
            expires_after=expires_after(options),
        )
    return to_wire(file)


@routes.get("/v1/files")
@operation(FilePage, query=ListFiles)
def list_() -> FilePage:
    """List the project's files."""
    owner = caller()
    params = query(ListFiles)
    with current_context().database.read() as session:
        records, has_more = files.page(
            session,
            owner.project_id,
            after=params.after,
            limit=params.limit,
            descending=params.order == "desc",
            purpose=params.purpose,
        )
    retention = output_retention()
    return FilePage.of([to_wire(file, retention) for file in records], has_more=has_more)


def get_file(file_id: str) -> File:
    with reading() as (session, owner):
        return files.get(session, owner.project_id, file_id)


@routes.get("/v1/files/<file_id>")
@operation(FileObject, refusals=(404,))
def retrieve(file_id: str) -> FileObject:
    """Look at a file."""
    return to_wire(get_file(file_id))


@routes.get("/v1/files/<file_id>/content")
@operation(None, media_type="application/octet-stream", refusals=(404,))
def content(file_id: str) -> Response:
    """Download a file: the bytes that were uploaded, or that a batch has written."""
    return send(get_file(file_id))


def send(file: File) -> Response:
    """Return a response that streams a file as a download. Raises UnavailableError."""
    with ExitStack() as stack:
        try:  # before the first byte: what is missing, or is seen to be damaged, is then an error, not a cut response
            stream = stack.enter_context(current_context().artifacts.open(file.sha256, file.bytes))
            first = stream.read(CHUNK_BYTES)
        except ArtifactMissing as error:
            remedy = "upload it again" if file.purpose != "batch_output" else "run the batch again for new answers"
            raise ArtifactMissing(
                f"The content of file '{file.filename}' ({file.id}) is missing or damaged in the artifact store: "
                f"{remedy}, or have the store restored from a backup."
            ) from error
        opened = stack.pop_all()

    rest = iter(partial(stream.read, CHUNK_BYTES), b"")
    response = Response(itertools.chain((first,), rest), mimetype="application/octet-stream")
    response.call_on_close(opened.close)
    response.content_length = file.bytes
    # Headers hold printable ASCII (RFC 6266).
    plain = "".join(character for character in file.filename if character.isascii() and character.isprintable())
    encoded = {} if plain == file.filename else {"filename*": f"UTF-8''{quote(file.filename, safe='')}"}
    response.headers.set("Content-Disposition", "attachment", filename=plain, **encoded)
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


@routes.delete("/v1/files/<file_id>")
@operation(FileDeleted, refusals=(404,))
def delete(file_id: str) -> FileDeleted:
    """Delete a file. A batch that was made of it keeps what it needs until it has ended."""
    remove(file_id)
    return FileDeleted(id=file_id)


def remove(file_id: str) -> None:
    with writing() as (session, owner):
        files.delete(session, owner.project_id, file_id)
        events.act(session, owner, "file.deleted", file_id)
