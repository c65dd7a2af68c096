"""TCP ports of this machine: held ones for services, and holders of others."""

import logging
import socket
import sys
from typing import Any

import psutil

from batchyard.errors import ConfigurationError

log = logging.getLogger(__name__)


class Port:
    """A port that this process holds by a bound socket. It never listens there: a service is to.

    While it is held, no other program gets the port from the kernel, and before `share` nobody can bind it by number.

    Args:
        number: 0 takes any free port.
        option: names the port in the error.
    """

    def __init__(self, host: str, number: int, option: str = "") -> None:
        try:
            family = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            # A chosen port may have closed connections of an earlier server; a drawn one has none.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(number != 0))
            self._socket.bind((host, number))
        except (OSError, OverflowError) as error:
            holder = _holder(number)
            reason = f"is taken by {holder}" if holder else f"cannot be used: {error}"
            raise ConfigurationError(f"port {number} on {host} {reason}; choose another with {option}") from error
        self.number: int = self._socket.getsockname()[1]

    def share(self) -> None:
        """Let services listen there from now on. Linux allows that beside the bound socket, so it stays held."""
        if sys.platform == "linux":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            self.close()

    def close(self) -> None:
        self._socket.close()


def plan(host: str, port: int, flower_port: int) -> dict[str, Port]:
    """Hold the ports of a stack's services, all at once, so that no two get the same."""
    web = Port(host, port, "--port")
    try:
        flower = Port("127.0.0.1", flower_port, "--flower-port")
    except ConfigurationError as error:  # nobody waits for Flower, so it gets a free one
        flower = Port("127.0.0.1", 0)
        log.warning("Flower takes port %s: %s", flower.number, error)
    return {"web": web, "flower": flower, "ray": Port("127.0.0.1", 0)}


def free() -> int:
    """Return a free loopback port; another caller may get it, too: see `Port`."""
    port = Port("127.0.0.1", 0)
    port.close()
    return port.number


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
            address: Any = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return None  # macOS shows other processes' sockets to root only
    return None
