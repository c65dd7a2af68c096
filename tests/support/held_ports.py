"""Free ports for servers that tests start. No other process gets them, even while a server is down."""

from __future__ import annotations

from batchyard.local.ports import Port

_held: list[Port] = []


def hold(host: str = "127.0.0.1") -> int:
    """Return a port that no other process gets until this one ends."""
    port = Port(host, 0)
    port.share()
    _held.append(port)
    return port.number
