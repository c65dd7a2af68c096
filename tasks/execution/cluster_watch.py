"""The Ray cluster that this process is connected to: whether it still answers."""

import math
import sys
import threading
import time

CHECK_SECONDS = 1.0
CHECKS = 3
"""A cluster that was away at so many checks in a row is lost."""


def is_connected() -> bool:
    # Another thread may be importing Ray now.
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def ray_is_away() -> bool:
    """True if this process is connected to a Ray cluster that does not answer."""
    if not is_connected():
        return False
    from inference.ray import cluster

    return not cluster.alive()


class ClusterWatch:
    """Watches the Ray cluster that this process is connected to, for all its segments."""

    def __init__(self) -> None:
        self._checking = threading.Lock()
        self._checked_at = -math.inf
        self._away = 0

    def lost(self) -> bool:
        """Return True if the cluster was away, or another one, at CHECKS checks in a row, one a beat at most."""
        if self._checking.acquire(blocking=False):
            try:
                if time.monotonic() - self._checked_at >= CHECK_SECONDS:
                    self._away = self._away + 1 if ray_is_away() else 0
                    self._checked_at = time.monotonic()
            finally:
                self._checking.release()
        return self._away >= CHECKS


WATCH = ClusterWatch()
"""The watch of this process."""
