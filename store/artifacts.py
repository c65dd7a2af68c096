"""Artifacts: content-addressed, write-once and atomic; in a local folder or any file system of fsspec."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from batchyard.errors import ConfigurationError, UnavailableError

INCOMING = "incoming"
# The folders of the store: unfinished writes, and content by the first two digits of its SHA-256.
SHARDS = (INCOMING, *(f"{number:02x}" for number in range(256)))
# The bucket may hold other things, which are never touched. A file set aside is about to be deleted.
_NAME = re.compile(r"(?P<name>[0-9a-f]{64}|[0-9a-f]{32})(?P<aside>\.[0-9a-f]{16})?")


class Artifacts:
    """The artifact store at one fsspec URL. Content with SHA-256 `abcd…` is at `<url>/ab/abcd…`.

    Raises:
        ConfigurationError: fsspec has no implementation for the URL.
    """

    def __init__(self, url: str) -> None:
        try:
            # A cached listing would hide what other processes write.
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise ConfigurationError(f"ARTIFACTS_URL={url!r}: {error}") from error
        self.url = url

    def path(self, sha256: str) -> str:
        """Return the path of content in its file system."""
        return f"{self._root}/{sha256[:2]}/{sha256}"

    def create(self) -> Writer:
        """Return a writer for content whose SHA-256 is not known yet."""
        return Writer(self)

    def put(self, content: bytes) -> str:
        """Store `content`. Return its SHA-256."""
        with self.create() as writer:
            writer.write(content)
        return writer.sha256

    @contextmanager
    def open(self, sha256: str) -> Iterator[IO[bytes]]:
        """Open content as a seekable file.

        Raises:
            UnavailableError: the store does not have it or cannot be reached.
        """
        try:
            file = self._fs.open(self.path(sha256), "rb")
        except OSError as error:
            raise UnavailableError(f"artifact {sha256} in {self.url} cannot be read: {error}") from error
        with file:
            yield file

    def read(self, sha256: str) -> bytes:
        """Return content. Raises UnavailableError."""
        with self.open(sha256) as file:
            return file.read()

    def names(self, shard: str) -> list[str]:
        """Return the names in a shard: SHA-256s, or those of unfinished writes in `incoming`.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        with self._reachable():
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
        """Delete a name in a shard unless it is younger than `seconds`.

        Returns:
            Freed bytes; None if nothing was deleted.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        path = f"{self._root}/{shard}/{name}"
        with self._reachable():
            try:
                if self._age(path) < seconds:
                    return None
                size = int(self._fs.size(path) or 0)
                if isinstance(self._fs, LocalFileSystem):
                    return size if self._delete_aside(Path(path), seconds) else None
                # fsspec has no conditional delete: content that is written again within the one round trip
                # since its age was read is lost.
                self._fs.rm_file(path)
            except FileNotFoundError:
                return None
        return size

    def _age(self, path: str) -> float:
        return time.time() - float(self._fs.modified(path).timestamp())

    def _delete_aside(self, path: Path, seconds: float) -> bool:
        """Delete a file if it is still old after a rename. Nobody can renew it under its secret name."""
        aside = path.rename(f"{path}.{secrets.token_hex(8)}")
        if self._age(str(aside)) < seconds:
            self._put_back(aside)
            return False
        aside.unlink()
        return True

    def _put_back(self, aside: Path) -> None:
        """Restore the name of a file that was set aside, perhaps by a collector that was killed.

        A file that has that name by now has the same content. The new age protects it from collection.
        """
        try:
            os.utime(aside)
            aside.replace(aside.with_suffix(""))
        except FileNotFoundError:
            pass  # its collector has finished

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(f"artifact store {self.url} cannot be reached: {error}") from error

    def ping(self) -> None:
        """Raises UnavailableError if the store cannot be written to."""
        with self.create() as writer:
            writer.write(b"")


class Writer(io.RawIOBase):
    """Writes content to the store and hashes it. Nothing is visible before `commit`.

    The `with` block commits at its end; an exception discards everything. `sha256` and `size` describe the content.
    """

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self._fs = artifacts._fs
        self._temporary = f"{artifacts._root}/{INCOMING}/{secrets.token_hex(16)}"
        self._hash = hashlib.sha256()
        self.size = 0
        self.stored = False
        with self._translated():
            self._fs.makedirs(self._temporary.rpartition("/")[0], exist_ok=True)
            self._file = self._fs.open(self._temporary, "wb")

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes written so far."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with self._translated():
            self._file.write(data)
        self._hash.update(data)
        self.size += len(data)
        return len(data)

    def commit(self) -> None:
        """Make the content visible under its SHA-256.

        Existing content is replaced by itself and becomes young again. Young content is not collected, so the caller
        has time to write the record that references it.
        """
        with self._translated():
            local = isinstance(self._fs, LocalFileSystem)
            if local:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            if local:
                os.utime(self._temporary)  # a move keeps the time of the last write, which may be long ago
            target = self._artifacts.path(self.sha256)
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._fs.mv(self._temporary, target)
            self.stored = True

    def discard(self) -> None:
        """Delete what was written."""
        self._file.close()
        if self._fs.exists(self._temporary):
            self._fs.rm_file(self._temporary)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.discard()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = "it is full; free some space" if error.errno == errno.ENOSPC else str(error)
            raise UnavailableError(f"artifact store {self._artifacts.url} cannot be written: {reason}") from error
