"""Running segments: those of this process, which end together when it ends."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from store.segments import SegmentLease


class RunningSegments:
    """The segments of this process. `ending`: it ends, so whatever begins now is stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[tuple[SegmentLease, threading.Event]] = []
        self.ending = False

    @contextmanager
    def add(self, segment: SegmentLease, stopped: threading.Event) -> Iterator[None]:
        """Count the segment as running during the block. `stopped` is set if the process ends meanwhile."""
        entry = (segment, stopped)
        with self._lock:
            self._running.append(entry)
            if self.ending:
                stopped.set()
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(entry)

    def stop(self) -> None:
        """Stop all segments, and those that begin later. Each is given back, and runs again elsewhere."""
        with self._lock:
            self.ending = True
            for _, stopped in self._running:
                stopped.set()

    def segments(self) -> list[SegmentLease]:
        with self._lock:
            return [segment for segment, _ in self._running]


RUNNING = RunningSegments()
"""The segments of this process."""
