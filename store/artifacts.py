"""Artifacts: content-addressed, write-once and atomic; in a local folder or any file system of fsspec."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from batchyard import plugins
from batchyard.errors import ArtifactMissing, ConfigurationError, UnavailableError

INCOMING = "incoming"
# The folders of the store: unfinished writes, and content by the first two digits of its SHA-256.
SHARDS = (INCOMING, *(f"{number:02x}" for number in range(256)))
# The bucket may hold other things, which are never touched. A file set aside is about to be deleted.
_NAME = re.compile(r"(?P<name>[0-9a-f]{64}|[0-9a-f]{32})(?P<aside>\.[0-9a-f]{16})?")
_S3: Mapping[str, Any] = {
    # A call ends within 21 s, less than a lease: two attempts of 10 s, with at most a second between them.
    "config_kwargs": {"connect_timeout": 3, "read_timeout": 10, "retries": {"total_max_attempts": 2}},
    # Parts of an upload that are in memory at once, of 50 MiB each.
    "max_concurrency": 2,
}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {"s3": _S3, "s3a": _S3}
"""Options of a file system, by the scheme of its URL."""
_LEAST_FREE_BYTES = 1024 * 1024
_UPLOAD_SECONDS = 10.0
_LEAST_BYTES_PER_SECOND = 1024 * 1024
_READ_BYTES = 4 * 1024 * 1024
_LOCAL_READ_BYTES = 64 * 1024
"""Less than of a remote file: reading a line here and there costs so much each."""


class Artifacts:
    """The artifact store at one fsspec URL. Content with SHA-256 `abcd…` is at `<url>/ab/abcd…`.

    A local folder, or a store that shows a new object when it is whole, as object stores do. Raises ConfigurationError.
    """

    def __init__(self, url: str) -> None:
        try:
            self._fs, self._root = file_system(url)
        except ConfigurationError as error:
            raise ConfigurationError(f"ARTIFACTS_URL={url!r}: {error.message}") from error
        self._local = isinstance(self._fs, LocalFileSystem)
        self.url = url

    def path(self, sha256: str) -> str:
        return f"{self._root}/{sha256[:2]}/{sha256}"

    def create(self) -> ArtifactWriter:
        """Return a writer for content whose SHA-256 is not known yet."""
        return ArtifactWriter(self)

    def put(self, content: bytes) -> str:
        """Store `content`. Return its SHA-256."""
        with self.create() as writer:
            writer.write(content)
        return writer.sha256

    @contextmanager
    def open(self, sha256: str, size: int | None = None) -> Iterator[IO[bytes]]:
        """Open content as a seekable file. Reading it raises these errors, too.

        Content that is read from its beginning to its end is checked before its last bytes are returned; its `size`, if
        given, at once.

        Raises UnavailableError; ArtifactMissing: the store does not have the content, or has it damaged.
        """
        with self._translated("read"):
            try:
                file = self._fs.open(self.path(sha256), "rb", block_size=_READ_BYTES)
            except FileNotFoundError as error:
                raise ArtifactMissing(
                    f"The content with SHA-256 {sha256} is missing in the artifact store; restore it from a backup."
                ) from error
            checked = _CheckedFile(file, self._translated, sha256, size)
        with io.BufferedReader(checked, _LOCAL_READ_BYTES if self._local else _READ_BYTES) as reader:
            yield reader

    def read(self, sha256: str) -> bytes:
        """Return content. Raises UnavailableError, ArtifactMissing."""
        with self.open(sha256) as file:
            return file.read()

    def names(self, shard: str) -> list[str]:
        """Return the names in a shard: SHA-256s, or in `incoming` unfinished writes. Raises UnavailableError."""
        with self._translated("reached"):
            try:
                paths = self._fs.ls(f"{self._root}/{shard}", detail=False)
            except FileNotFoundError:
                return []
            matches = [match for path in paths if (match := _NAME.fullmatch(path.rpartition("/")[2]))]
            for match in matches:
                if match["aside"]:
                    self._put_back(Path(self._root, shard, match[0]))
        return sorted({match["name"] for match in matches})

    def collect(self, shard: str, name: str, seconds: float) -> int | None:
        """Delete a name in a shard unless it is younger than `seconds`. Raises UnavailableError.

        Return the freed bytes, 0 if it is gone already; None if it is younger.
        """
        path = f"{self._root}/{shard}/{name}"
        with self._translated("reached"):
            try:
                if self._age(path) < seconds:
                    return None
                size = int(self._fs.size(path) or 0)
                if self._local:
                    aside = Path(path).rename(f"{path}.{secrets.token_hex(8)}")  # nobody can renew it under that name
                    if self._age(str(aside)) < seconds:
                        self._put_back(aside)
                        return None
                    aside.unlink()
                    return size
                # fsspec has no conditional delete: content that is written again within the one round trip
                # since its age was read is lost.
                self._fs.rm_file(path)
            except FileNotFoundError:
                return 0
        return size

    def _age(self, path: str) -> float:
        return time.time() - float(self._fs.modified(path).timestamp())

    def _put_back(self, aside: Path) -> None:
        """Restore the name of a file that was set aside, perhaps by a collector that was killed.

        A file that has that name by now has the same content. The new age protects it from collection.
        """
        try:
            os.utime(aside)
            aside.replace(aside.with_suffix(""))
        except FileNotFoundError:
            pass  # its collector has finished

    def _translated(self, action: str) -> AbstractContextManager[None]:
        return translated(f"artifact store {self.url}", action)

    def _limit(self, size: int) -> dict[str, float]:
        """Return the option that limits the time to upload `size` bytes, if there is one.

        S3's client has no time limit while it waits for leave to send a body ("100 Continue").
        """
        limited = isinstance(self._fs, AsyncFileSystem)
        return {"timeout": _UPLOAD_SECONDS + size / _LEAST_BYTES_PER_SECOND} if limited else {}

    def is_full(self) -> bool:
        """True for a local folder on whose disk nothing more can be written."""
        with suppress(FileNotFoundError):  # nothing was written yet
            return self._local and shutil.disk_usage(self._root).free < _LEAST_FREE_BYTES
        return False

    def ping(self) -> None:
        """Raises UnavailableError if the store cannot be written to."""
        with self.create() as writer:
            writer.write(b"")


@contextmanager
def translated(name: str, action: str) -> Iterator[None]:
    """Raise UnavailableError for an error of a file system: `name` cannot be `action` (a participle)."""
    try:
        yield
    except Exception as error:
        library = type(error).__module__.partition(".")[0]
        if library in ("builtins", "batchyard") and not isinstance(error, OSError):
            raise
        full = getattr(error, "errno", None) == errno.ENOSPC
        message = getattr(error, "strerror", None) or str(error)  # without the path, which is no client's business
        reason = "it is full; free some space" if full else message or type(error).__name__
        raise UnavailableError(f"{name} cannot be {action}: {reason}") from error


def file_system(url: str) -> tuple[AbstractFileSystem, str]:
    """Return a URL's file system, with time limits, and its path. Raises ConfigurationError."""
    scheme = url.partition("://")[0]
    if scheme in _OPTIONS:
        plugins.require("s3", f"a URL of {scheme}://")
    options = _OPTIONS.get(scheme, {})
    try:
        # A cached listing would hide what other processes write.
        if scheme == "file":  # it would take `::` in a path for a chain of URLs
            return LocalFileSystem(), str(LocalFileSystem._strip_protocol(url))
        files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    except (ValueError, ImportError) as error:
        raise ConfigurationError(str(error)) from error
    if hasattr(files, "retries"):
        files.retries = 1  # s3fs would repeat the attempts of its client five times
    return files, root


class RawFile(io.RawIOBase):
    """A file of fsspec whose errors are translated. `io.BufferedReader` gives it `readline(size)`."""

    def __init__(self, file: Any, translated: Callable[[str], AbstractContextManager[None]]) -> None:
        self._file = file
        self._translated = translated

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._translated("read"):
            return int(self._file.readinto(buffer))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        super().close()


class _CheckedFile(RawFile):
    """Content whose SHA-256 is computed while it is read from its beginning, in whatever pieces."""

    def __init__(
        self, file: Any, translated: Callable[[str], AbstractContextManager[None]], sha256: str, size: int | None
    ) -> None:
        super().__init__(file, translated)
        self._sha256, self._hash, self._hashed = sha256, hashlib.sha256(), 0
        self._size = self.seek(0, io.SEEK_END)
        if size not in (None, self._size):
            raise self._damaged()
        self.seek(0)

    def readinto(self, buffer: Any) -> int:
        at = self.tell()
        end = at + super().readinto(buffer)
        if at <= self._hashed < end:
            self._hash.update(memoryview(buffer)[self._hashed - at : end - at])
            self._hashed = end
        cut_short = at == end < self._size
        if cut_short or (self._hashed == self._size <= end and self._hash.hexdigest() != self._sha256):
            raise self._damaged()
        return end - at

    def _damaged(self) -> ArtifactMissing:
        return ArtifactMissing(
            f"The content with SHA-256 {self._sha256} is damaged in the artifact store; restore it from a backup."
        )


class ArtifactWriter(io.RawIOBase):
    """Writes content to the store and hashes it. Nothing is visible before `commit`.

    The `with` block commits at its end; an exception discards everything. `sha256` and `size` describe the content.
    Content for a local folder is written beside its place; for another store it is written to a temporary file and
    sent by `commit`, since only then its SHA-256, and so its place, is known.
    """

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self._hash = hashlib.sha256()
        self.size = 0
        self.stored = False
        with artifacts._translated("written"):
            folder = Path(artifacts._root, INCOMING) if artifacts._local else Path(tempfile.gettempdir())
            folder.mkdir(parents=True, exist_ok=True)
            self._temporary = folder / secrets.token_hex(16)
            self._file = self._temporary.open("xb")

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes written so far."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with self._artifacts._translated("written"):
            self._file.write(data)
        self._hash.update(data)
        self.size += len(data)
        return len(data)

    def written(self) -> IO[bytes]:
        """Open what was written and not committed yet, for reading."""
        with self._artifacts._translated("read"):
            self._file.flush()
            return self._temporary.open("rb")

    def commit(self) -> None:
        """Make the content visible under its SHA-256.

        Existing content is replaced by itself and becomes young again. Young content is not collected, so the caller
        has time to write the record that references it.
        """
        store = self._artifacts
        target = store.path(self.sha256)
        try:
            with store._translated("written"):
                self._file.flush()
                if store._local:
                    os.fsync(self._file.fileno())
                    os.utime(self._temporary)  # a move keeps the time of the last write, which may be long ago
                    Path(target).parent.mkdir(parents=True, exist_ok=True)
                    self._temporary.replace(target)
                else:
                    store._fs.put_file(str(self._temporary), target, **store._limit(self.size))
                self.stored = True
        finally:
            self.discard()

    def discard(self) -> None:
        with suppress(OSError):  # of a full disk: what could not be written is deleted
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()
