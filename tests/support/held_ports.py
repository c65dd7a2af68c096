"""Ports that are kept for servers of tests, also before they start and while they are stopped."""

from __future__ import annotations

from batchyard.local.ports import Port


def held() -> Port:
    """Return a port of loopback that a server may take, and that no other process is given by the kernel."""
    port = Port("127.0.0.1", 0)
    port.share()
    return port
