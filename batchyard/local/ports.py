"""TCP ports of this machine: a free one, and the holder of one in use."""

from __future__ import annotations

import socket
from typing import Any

import psutil

from batchyard.errors import ConfigurationError


def claim(host: str, port: int, option: str) -> int:
    """Return the port if it can be listened on; any free one for 0.

    Raises:
        ConfigurationError: the port is in use, or the host is not this machine's; names the holder and the remedy.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except (OSError, OverflowError) as error:
        holder = _holder(port)
        reason = f"is taken by {holder}" if holder else f"cannot be used: {error}"
        raise ConfigurationError(f"port {port} on {host} {reason}; choose another with {option}") from error


def free() -> int:
    """Return a port of the loopback interface that is free now."""
    return claim("127.0.0.1", 0, "")


def answers(host: str, port: int) -> bool:
    """True if a server accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def _holder(port: int) -> str | None:
    """Name and pid of the process that listens on a port; None if unknown."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and _port(connection.laddr) == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return None  # macOS shows other processes' sockets to root only
    return None


def _port(address: Any) -> int | None:
    return address.port if address else None
