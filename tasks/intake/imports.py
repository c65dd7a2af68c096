"""Imports: objects of the buckets that the operator allows become inputs, each for itself or joined to one."""

import time
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import IO

from batchyard.errors import RequestError, TooLargeError, UnavailableError
from batchyard.settings import Settings
from batchyard.tables import formats
from batchyard.tables.formats import TableError
from store import files
from store.artifacts import ArtifactWriter
from store.intake.buckets import Bucket, StoredObject, check_url
from tasks.context import AppContext
from tasks.intake.submission import NewInput

MAX_OBJECTS = 1000
SECONDS = 120.0
"""Longest that an import may take."""
_COPY_BYTES = 1024 * 1024
_LINES = ("jsonl", "txt")
"""Formats of which several objects are one file when they follow each other."""


def bucket(settings: Settings, project_id: str, url: str, param: str = "url") -> Bucket:
    """Return the bucket at a URL. Raises PermissionDeniedError unless its prefix is allowed."""
    check_url(url, settings.input_prefix_list, project_id, "BATCHYARD_INPUT_PREFIXES", param, "read")
    return Bucket(url)


def joined(context: AppContext, project_id: str, url: str) -> NewInput:
    """Store all objects at a URL as one content, by path, decompressed; lines end at the end of an object.

    Raises PermissionDeniedError, NotFoundError, TooLargeError; RequestError if they are too many for the limits or
    cannot follow each other in one file; UnavailableError if the bucket is away, slow, or changing.
    """
    source = bucket(context.settings, project_id, url)
    objects = source.objects(MAX_OBJECTS)
    kinds = {formats.kind_of(stored.name) for stored in objects}
    suffixes = {kind.format if kind else None for kind in kinds}
    if len(objects) > 1 and not (len(suffixes) == 1 and suffixes <= {*_LINES}):
        message = (
            f"The {len(objects)} objects at {url} cannot be joined: several are one file only if all are JSON lines, "
            "or all text with a prompt on each line. Import each for itself."
        )
        raise RequestError(message, code="invalid_value", param="url")
    _check_objects(context, project_id, url, objects)
    return _stored(context, source, objects, _name(url, objects), time.monotonic() + SECONDS)


def each(context: AppContext, project_id: str, url: str) -> list[NewInput]:
    """Store each object at a URL as a content of its own, within the size of one upload. Raises as `joined`."""
    source, ends_at = bucket(context.settings, project_id, url), time.monotonic() + SECONDS
    objects = source.objects(MAX_OBJECTS)
    _check_objects(context, project_id, url, objects)
    contents = []
    for stored in objects:
        contents.append(_stored(context, source, [stored], _name(url, [stored]), ends_at))
        _check_size(context, url, sum(content.size for _, content in contents))
    return contents


def _check_objects(context: AppContext, project_id: str, url: str, objects: Sequence[StoredObject]) -> None:
    """Refuse objects with more bytes than an upload may have, or the project may store, before they are read."""
    size = sum(stored.bytes for stored in objects)
    _check_size(context, url, size)
    with context.database.read() as session:
        files.room(session, project_id).check(size)


def _check_size(context: AppContext, url: str, size: int) -> None:
    """Raise TooLargeError for an input that is larger than an upload may be."""
    limit = context.settings.max_file_bytes
    if size > limit:
        message = f"The input at {url} is larger than {limit} bytes; split it, or raise BATCHYARD_MAX_FILE_BYTES."
        raise TooLargeError(message, code="file_too_large", param="url")


def _name(url: str, objects: Sequence[StoredObject]) -> str:
    """Return the name of a file of these objects, whose suffix says what it holds."""
    first = objects[0].name
    first = PurePosixPath(first).with_suffix("").name if formats.compression_of(first) else first
    return first if len(objects) == 1 else f"{url.rstrip('/').rpartition('/')[2]}{PurePosixPath(first).suffix}"


def _stored(
    context: AppContext, source: Bucket, objects: Sequence[StoredObject], name: str, ends_at: float
) -> NewInput:
    limit = context.settings.max_file_bytes
    with context.artifacts.create() as target:
        for stored in objects:
            with source.open(stored) as file:
                try:
                    content = formats.decompressed(file, formats.compression_of(stored.name), limit)
                    ends_line = _copy(content, target, ends_at, source.url)
                except TableError as error:
                    message = f"The object {stored.name} cannot be read: {error.message}"
                    raise RequestError(message, code=error.code, param="url") from error
            _check_size(context, source.url, target.size)
            if len(objects) > 1 and not ends_line:
                target.write(b"\n")
    return NewInput(name, target)


def _copy(source: IO[bytes], target: ArtifactWriter, ends_at: float, url: str) -> bool:
    """Copy all of `source`. Return True if it ends with a line feed."""
    last = b""
    while chunk := source.read(_COPY_BYTES):
        if time.monotonic() > ends_at:
            raise UnavailableError(f"The bucket of {url} takes longer than {SECONDS:g} s to read; import less at once.")
        target.write(chunk)
        last = chunk[-1:]
    return last == b"\n"
