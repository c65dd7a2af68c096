"""Buckets: objects of a file system of fsspec, listed and read as they were when they were listed."""

import functools
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from batchyard.errors import NotFoundError, PermissionDeniedError, RequestError, UnavailableError
from store.artifacts import RawFile, file_system, translated

_READ_BYTES = 1024 * 1024
_HIDDEN = (".", "_")
"""How the names of objects begin that are no data, such as the `_SUCCESS` of a finished job."""

PROJECT = "{project}"
"""Stands in an allowed prefix for the id of the project."""
_ODD = ("*", "\\", "::", "/./", "/../", "%2e", "%2f", "%5c")
"""fsspec takes `::` for a chain of URLs; a star is meant as a pattern."""


class StoredObject(NamedTuple):
    """An object of a bucket. `path` is that in its file system, `etag` changes with its content."""

    path: str
    bytes: int
    etag: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Bucket:
    """The object at a URL, or those in the folder there. Raises ConfigurationError."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._root = file_system(url)
        self._translated = functools.partial(translated, f"the bucket of {url}")

    def objects(self, limit: int, *, recursive: bool = True) -> list[StoredObject]:
        """Return objects by path, without empty and hidden ones; those of its folders only if `recursive`.

        Raises NotFoundError without any; RequestError above `limit`; UnavailableError.
        """
        root = self._root.rstrip("/")
        with self._translated("listed"):
            infos: Mapping[str, Mapping[str, Any]] = self._fs.find(root, maxdepth=None if recursive else 1, detail=True)
        objects = [
            StoredObject(path, int(info["size"]), _etag(info))
            for path, info in sorted(infos.items())
            if (path == root or path.startswith(f"{root}/"))
            and info["size"]
            and not any(part.startswith(_HIDDEN) for part in path.removeprefix(root).split("/"))
        ]
        if not objects:
            raise NotFoundError(f"There is no object at {self.url}, or none with content.", param="url")
        if len(objects) > limit:
            message = f"There are {len(objects)} objects at {self.url}, more than {limit}; name a folder with fewer."
            raise RequestError(message, code="too_many_objects", param="url")
        return objects

    @contextmanager
    def open(self, stored: StoredObject) -> Iterator[IO[bytes]]:
        """Open an object as it was listed. The end of the block raises UnavailableError if it has changed meanwhile."""
        self._check(stored)
        with self._translated("read"):
            file = self._fs.open(stored.path, "rb", block_size=_READ_BYTES, cache_type="readahead")
        with io.BufferedReader(RawFile(file, self._translated), _READ_BYTES) as reader:
            yield reader
        self._check(stored)

    def _check(self, stored: StoredObject) -> None:
        try:
            with self._translated("read"):
                is_same = _etag(self._fs.info(stored.path)) == stored.etag
        except UnavailableError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            is_same = False
        if not is_same:
            message = f"The object {stored.name} of {self.url} changed while it was read; try again."
            raise UnavailableError(message, code="object_changed")


def _etag(info: Mapping[str, Any]) -> str:
    """Return what changes with an object's content: its etag, else its size and the time of its last change."""
    etag = info.get("ETag") or info.get("etag")
    return str(etag or (info["size"], info.get("mtime") or info.get("LastModified") or info.get("created")))


def check_url(url: str, prefixes: Sequence[str], project_id: str, setting: str, param: str, use: str) -> None:
    """Raise PermissionDeniedError unless a URL is below an allowed prefix, which `setting` has. `use`: a participle."""
    path = url.partition("://")[2]
    odd = next((odd for odd in _ODD if odd in f"/{path}/".lower() or odd in url), None)
    allowed = [prefix.replace(PROJECT, project_id) for prefix in prefixes]
    if odd is not None or not any(_is_below(url, prefix) for prefix in allowed):
        remedy = f"the operator allows prefixes with {setting}"
        reason = f"allowed are URLs below {', '.join(allowed)}" if allowed else f"none is allowed; {remedy}"
        reason = f"{reason}, without {odd!r}" if odd else reason
        raise PermissionDeniedError(f"The URL '{url}' cannot be {use} here: {reason}.", param=param)


def _is_below(url: str, prefix: str) -> bool:
    folder = prefix.rstrip("/")
    return url.rstrip("/") == folder or url.startswith(f"{folder}/")
