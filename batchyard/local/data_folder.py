"""The data folder of a local stack: lock, remains of an earlier holder, secrets."""

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil

from batchyard.errors import ConfigurationError
from batchyard.local import process
from batchyard.local_state import STATE_FILE

FREE_BYTES = 256 * 1024 * 1024
# The kernel's limit for a socket's path is 107 bytes (103 on macOS). Ray's paths are this much longer than its folder.
_SOCKET_BYTES = 103
_RAY_SUFFIX = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.10")


class DataFolder:
    """The folder that holds all files of a local stack."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.run, self.logs, self.redis = self.path / "run", self.path / "logs", self.path / "redis"
        self._lock: int | None = None
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.run, self.logs, self.redis):
                folder.mkdir(exist_ok=True)
            with tempfile.TemporaryFile(dir=self.run) as probe:
                probe.write(bytes(4096))
        except OSError as error:
            raise ConfigurationError(
                f"data folder {self.path}: {error.strerror}; make it writable, or name another with --data"
            ) from error
        free = shutil.disk_usage(self.path).free
        if free < FREE_BYTES:
            raise ConfigurationError(
                f"data folder {self.path}: {free >> 20} MiB free, {FREE_BYTES >> 20} needed; make room, "
                "or name another with --data"
            )

    def hold(self) -> None:
        """Lock this folder until `release`, and end what a killed stack left running."""
        descriptor = os.open(self.run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 1000).decode() or "another process"
            os.close(descriptor)
            raise ConfigurationError(
                f"data folder {self.path} is held by {holder}; stop that one, or name another with --data"
            ) from error
        since = datetime.now(UTC).isoformat(timespec="seconds")
        os.truncate(descriptor, 0)
        os.write(descriptor, f"batchyard up, pid {os.getpid()}, since {since}".encode())
        self._lock = descriptor
        process.end(process.tagged(str(self.path)), grace=5)
        for stale in [*self.run.glob("*.pid"), *self.run.glob("*.sock"), self.state_file]:
            stale.unlink(missing_ok=True)
        shutil.rmtree(self.ray, ignore_errors=True)

    def release(self) -> None:
        """Unlock the folder, if this object holds it."""
        if self._lock is not None:
            self.state_file.unlink(missing_ok=True)
            if self.short != self.run:
                shutil.rmtree(self.short, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    @property
    def name(self) -> str:
        """A short name that differs between data folders."""
        return "by-" + hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]

    @property
    def short(self) -> Path:
        """The folder for sockets: `run`, or a temporary one if that path cannot have sockets."""
        longest = len(os.fsencode(self.run / "ray")) + _RAY_SUFFIX
        if longest <= _SOCKET_BYTES and re.fullmatch(r"[\w./-]+", str(self.run), re.ASCII):
            return self.run
        folder = Path("/tmp") / f"{self.name}-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ConfigurationError(f"{folder}: not a folder that only this user can enter; remove it")
        return folder

    @property
    def ray(self) -> Path:
        """The folder of Ray's sessions, with the output of its processes."""
        return self.short / "ray"

    @property
    def state_file(self) -> Path:
        return self.path / STATE_FILE

    def write_state(self, url: str, flower: str) -> None:
        """Write the addresses of the stack that this process runs, for the terminal commands."""
        process = psutil.Process()
        draft = self.state_file.with_suffix(".new")
        state = {
            "url": url,
            "flower": flower,
            "pid": process.pid,
            "started": process.create_time(),
            "ray": str(self.ray),
        }
        draft.write_text(json.dumps(state))
        draft.rename(self.state_file)

    @property
    def admin_key_file(self) -> Path:
        return self.path / "admin.key"

    def flower_password(self) -> str:
        """`user:password` of Flower, created on first use."""
        return self.secret("flower.auth", lambda: f"batchyard:{secrets.token_urlsafe(24)}")

    def ray_access(self) -> dict[str, str]:
        """The environment of who may use the stack's own Ray cluster: its token is created on first use."""
        self.secret("ray.token", lambda: secrets.token_hex(32))
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.path / "ray.token")}

    def secret(self, name: str, make: Callable[[], str]) -> str:
        """Return the content of a file that only this user can read; created on first use."""
        file = self.path / name
        if not file.exists():
            write_secret(file, make)
        return file.read_text().strip()


def write_secret(file: Path, make: Callable[[], str]) -> None:
    """Write a file that only this user can read, whole or not at all."""
    draft = file.with_name(file.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(make())  # no line break: people put the content into a header
    draft.rename(file)
