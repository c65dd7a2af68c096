"""Imports: objects of the buckets that the operator allows become inputs, each for itself or joined to one."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import IO

from batchyard import json_lines
from batchyard.errors import RequestError, TooLargeError, UnavailableError
from batchyard.request_lines.lines import LineError, custom_id, parse
from batchyard.settings import Settings
from batchyard.tables import formats
from batchyard.tables.formats import TableError
from store import files
from store.artifacts import ArtifactWriter
from store.formats.lines import numbered_lines
from store.intake.buckets import Bucket, StoredObject, check_url
from tasks.context import AppContext
from tasks.intake.submission import NewInput

MAX_OBJECTS = 1000
SECONDS = 120.0
"""Longest that an import may take."""
TOO_SLOW = "import_too_slow"
"""The code of an import that has taken longer."""
_COPY_BYTES = 1024 * 1024
_LINES = ("jsonl", "txt")
"""Formats of which several objects are one file when they follow each other."""


def bucket(settings: Settings, project_id: str, url: str, param: str = "url") -> Bucket:
    """Return the bucket at a URL. Raises PermissionDeniedError unless its prefix is allowed."""
    check_url(url, settings.input_prefix_list, project_id, "BATCHYARD_INPUT_PREFIXES", param, "read")
    return Bucket(url)


def joined(context: AppContext, project_id: str, url: str) -> NewInput:
    """Store all objects at a URL as one content, by path, decompressed; lines end at the end of an object.

    Programs that write a folder of parts often number each part's requests from 1. So a custom_id that an earlier
    object has gets the name of its own object before it.

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


def one(context: AppContext, project_id: str, source: Bucket, stored: StoredObject) -> NewInput:
    """Store an object as a content. Raises as `joined`; UnavailableError also if it was changed or removed."""
    _check_objects(context, project_id, source.url, [stored])
    return _stored(context, source, [stored], _name(source.url, [stored]), time.monotonic() + SECONDS)


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
    limit, ids = context.settings.max_file_bytes, set[int]()
    with context.artifacts.create() as target:
        for stored in objects:
            with source.open(stored) as file:
                try:
                    content = formats.decompressed(file, formats.compression_of(stored.name), limit)
                    whole = iter(partial(content.read, _COPY_BYTES), b"")
                    chunks = whole if len(objects) == 1 else _lines(content, stored.name, ids, context.settings)
                    _copy(chunks, target, ends_at, source.url)
                except TableError as error:
                    message = f"The object {stored.name} cannot be read: {error.message}"
                    raise RequestError(message, code=error.code, param="url") from error
            _check_size(context, source.url, target.size)
    return NewInput(name, target)


def _copy(chunks: Iterator[bytes], target: ArtifactWriter, ends_at: float, url: str) -> None:
    for chunk in chunks:
        if time.monotonic() > ends_at:
            message = f"The bucket of {url} takes longer than {SECONDS:g} s to read; import less at once."
            raise UnavailableError(message, code=TOO_SLOW)
        target.write(chunk)


def _lines(source: IO[bytes], name: str, earlier: set[int], settings: Settings) -> Iterator[bytes]:
    """Yield an object's lines, with unique custom_ids; add the hashes of its own to those of `earlier` objects."""
    own = set[int]()
    for number, raw in numbered_lines(source, settings.max_line_bytes):
        line = raw if raw.endswith(b"\n") else raw + b"\n"
        given = custom_id(raw)
        if given is not None and hash(given) in earlier:
            with contextlib.suppress(LineError):  # the validation reports it
                request = parse(number, raw, settings.max_line_bytes)
                line = json_lines.line({**request, "custom_id": f"{name}:{given}"})
        elif given is not None and len(earlier) + len(own) < settings.max_requests:
            own.add(hash(given))
        yield line
    earlier |= own
