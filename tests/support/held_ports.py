"""Free ports for servers that tests start: this process holds them, so that nobody else gets them before or between."""

from __future__ import annotations

from batchyard.local.ports import Port

_held: list[Port] = []


def hold(host: str = "127.0.0.1") -> int:
    """Return a port on which only who knows its number listens, until this process ends."""
    port = Port(host, 0)
    port.share()
    _held.append(port)
    return port.number
