"""Artifacts: content-addressed, write-once, atomic; on a local folder or anything fsspec can write to."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any

import fsspec

from batchyard.errors import ConfigurationError, UnavailableError


class Artifacts:
    """The store behind one fsspec URL. Content of SHA-256 `abcd…` lies at `<url>/ab/abcd…`.

    Raises:
        ConfigurationError: no fsspec implementation for the URL.
    """

    def __init__(self, url: str) -> None:
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise ConfigurationError(f"ARTIFACTS_URL={url!r}: {error}") from error
        self.url = url

    def path(self, sha256: str) -> str:
        return f"{self._root}/{sha256[:2]}/{sha256}"

    def create(self) -> Writer:
        """A writer for content whose SHA-256 is not known yet."""
        return Writer(self)

    def put(self, content: bytes) -> str:
        """Store `content`; its SHA-256."""
        with self.create() as writer:
            writer.write(content)
        return writer.sha256

    @contextmanager
    def open(self, sha256: str) -> Iterator[IO[bytes]]:
        """The content, seekable.

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
        with self.open(sha256) as file:
            return file.read()

    def ping(self) -> None:
        """Raises UnavailableError if the store cannot be written to."""
        with self.create() as writer:
            writer.write(b"")


class Writer(io.RawIOBase):
    """Bytes on their way into the store; hashed as they pass, visible only once `close` has succeeded.

    After the `with` block (or `commit`) `sha256` and `size` say what was stored. Left by an exception, nothing
    remains.
    """

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self._fs = artifacts._fs
        self._temporary = f"{artifacts._root}/incoming/{secrets.token_hex(16)}"
        self._hash = hashlib.sha256()
        self.size = 0
        self.stored = False
        with self._translated():
            self._fs.makedirs(self._temporary.rpartition("/")[0], exist_ok=True)
            self._file = self._fs.open(self._temporary, "wb")

    @property
    def sha256(self) -> str:
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
        """Make the content visible under its SHA-256. Content that is there already stays as it is."""
        with self._translated():
            if hasattr(self._file, "fileno"):
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            target = self._artifacts.path(self.sha256)
            if self._fs.exists(target):
                self._fs.rm_file(self._temporary)
            else:
                self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                self._fs.mv(self._temporary, target)
            self.stored = True

    def discard(self) -> None:
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
