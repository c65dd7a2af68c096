"""The folder of a backup: the rows, the artifacts, their SHA-256 sums, and the manifest.

batchyard.db        the rows
artifacts/ab/abcd…  content, as in an artifact store in a folder
SHA256SUMS          a line for each file above, which `sha256sum --check SHA256SUMS` reads too
manifest.json       what the backup is; without it the backup was never finished

And the copying of artifacts from one store to another, whose SHA-256 is checked on the way.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from batchyard.errors import ArtifactMissing, ConfigurationError
from batchyard.settings import folder_url
from store.artifacts import SHARDS, Artifacts

ROWS, SUMS, MANIFEST = "batchyard.db", "SHA256SUMS", "manifest.json"
FORMAT = 1
THREADS = 8
"""Copies at once: a call to an object store takes tens of milliseconds."""
_READ_BYTES = 1024 * 1024


@dataclass(frozen=True)
class BackupManifest:
    """What a backup is. `rows` counts by table, `bytes` are those of all files, `created_at` is Unix seconds.

    `revision` is that of the schema. `missing` are artifacts that records name and that their store had lost.
    """

    version: str
    revision: str
    created_at: int
    rows: dict[str, int]
    artifacts: int
    bytes: int
    sums_sha256: str
    missing: list[str] = field(default_factory=list)
    format: int = FORMAT


class BackupFolder:
    """The files of one backup."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = path / ROWS
        self.artifacts = Artifacts(folder_url(path.resolve() / "artifacts"))

    def create(self) -> None:
        """Make the folder, for this user alone. Raises ConfigurationError if something is in it."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            filled = any(self.path.iterdir())
            if not filled:
                self.path.chmod(0o700)
        except OSError as error:
            raise ConfigurationError(f"backup {self.path}: {error.strerror}; name another folder") from error
        if filled:
            raise ConfigurationError(f"backup {self.path}: the folder is not empty; name a new one")

    def seal(self, **values: Any) -> BackupManifest:
        """Write the sums and the manifest, with these fields. The backup is whole then."""
        artifacts, size = -1, 0
        with _written(self.path / SUMS) as sums:
            for sha256, name in self._files():
                artifacts, size = artifacts + 1, size + (self.path / name).stat().st_size
                sums.write(f"{sha256}  {name}\n")
        digest = _sha256(self.path / SUMS)
        manifest = BackupManifest(**values, artifacts=artifacts, bytes=size, sums_sha256=digest)
        with _written(self.path / MANIFEST) as file:
            json.dump(asdict(manifest), file, indent=2)
        return manifest

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yield the SHA-256 and the name of the file of the rows, then those of the artifacts."""
        yield _sha256(self.rows), ROWS
        for shard in SHARDS[1:]:
            for sha256 in self.artifacts.names(shard):
                yield sha256, f"artifacts/{shard}/{sha256}"

    def manifest(self) -> BackupManifest:
        """Return the manifest. Raises ConfigurationError without one of this version."""
        try:
            fields = json.loads((self.path / MANIFEST).read_bytes())
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"backup {self.path} has no {MANIFEST}: it was never finished, or is none; name another folder"
            ) from error
        except (OSError, ValueError) as error:
            raise self._damaged(f"{MANIFEST} cannot be read: {error}") from error
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise ConfigurationError(
                f"backup {self.path} has a format that this version does not know; restore it with the version of "
                f"Batchyard that made it"
            )
        try:
            return BackupManifest(**fields)
        except TypeError as error:
            raise self._damaged(f"{MANIFEST}: {error}") from error

    def verify(self, manifest: BackupManifest) -> None:
        """Read all files. Raises ConfigurationError at the first that is not as it was written."""
        try:
            self._check(SUMS, manifest.sums_sha256)
            with (self.path / SUMS).open() as sums:
                for line in sums:
                    sha256, name = line.rstrip("\n").split("  ", 1)
                    self._check(name, sha256)
        except OSError as error:
            raise self._damaged(f"{error.filename} cannot be read: {error.strerror}") from error

    def _check(self, name: str, sha256: str) -> None:
        if _sha256(self.path / name) != sha256:
            raise self._damaged(f"{name} is not as it was written")

    def _damaged(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"backup {self.path} is damaged: {what}; restore another backup")


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _written(file: Path) -> Iterator[TextIO]:
    """Open a file that is written whole or not at all."""
    draft = file.with_name(f"{file.name}.new")
    with draft.open("w") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)


def copy_content(source: Artifacts, target: Artifacts, hashes: Collection[str]) -> set[str]:
    """Copy content. Return the hashes of what the source lacks, or has otherwise. Raises UnavailableError."""
    with ThreadPoolExecutor(THREADS) as pool:
        copied = pool.map(partial(_copy, source, target), hashes)
        return {sha256 for sha256, done in zip(hashes, copied, strict=True) if not done}


def _copy(source: Artifacts, target: Artifacts, sha256: str) -> bool:
    try:
        with source.open(sha256) as stream, target.create() as writer:
            shutil.copyfileobj(stream, writer, _READ_BYTES)
    except ArtifactMissing:
        return False
    return True


def refuse_others(source: Artifacts, target: Artifacts) -> None:
    """Raise ConfigurationError if a store has content that `source` has not: two deployments would delete each other's.

    What an interrupted restore has copied may be there.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        filled = any(pool.map(lambda shard: set(target.names(shard)) - set(source.names(shard)), SHARDS[1:]))
    if filled:
        raise ConfigurationError(
            f"artifact store {target.url} is not empty; name a new data folder with --data, or a new folder or prefix "
            f"with ARTIFACTS_URL"
        )
