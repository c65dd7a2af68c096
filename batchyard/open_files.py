"""How many files and connections a process may have open."""

from __future__ import annotations

import resource


def raise_limit() -> None:
    """Let this process have as many open as it may: shells start processes with a lower limit than that."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
