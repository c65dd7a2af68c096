"""Who holds a lease; keeping it alive while its work goes on, and telling the work when to stop."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from batchyard.errors import LeaseLost, UnavailableError
from store.leases import Lease, acquire_batch
from tasks.context import AppContext

log = logging.getLogger(__name__)


def holder(task_id: str) -> str:
    """Who holds a lease: the process and the task, as a person can find them."""
    return f"{machine()}/{os.getpid()}/{task_id}"


def has_died(holder: str) -> bool:
    """Whether it was a process of this machine that is no more. Of others only their leases can tell."""
    where, pid, _ = holder.split("/", 2)
    return where == machine() and not psutil.pid_exists(int(pid))


@functools.cache
def machine() -> str:
    """The host's name, and a mark of where process ids are those seen here: hosts may share a name, containers both."""
    try:
        mark = Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        mark = str(uuid.getnode())
    return f"{socket.gethostname()}-{hashlib.sha256(mark.encode()).hexdigest()[:8]}"


class Heartbeat:
    """A thread that calls `beat` every `interval` seconds until the block ends.

    `beat` says whether the work is still wanted; when it is not, or the lease is lost, `stopped` is set and
    `on_stop` is called at every further beat.
    """

    def __init__(self, beat: Callable[[], bool], interval: float, on_stop: Callable[[], None] | None = None) -> None:
        self._beat = beat
        self._interval = interval
        self._on_stop = on_stop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.stopped = threading.Event()

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            if not self.stopped.is_set():
                try:
                    if not self._beat():
                        self.stopped.set()
                except LeaseLost as error:
                    log.warning("stopping: %s", error)
                    self.stopped.set()
                except UnavailableError as error:
                    log.warning("lease not renewed: %s", error)
            if self.stopped.is_set() and self._on_stop is not None:
                self._on_stop()


@contextmanager
def hold_batch(context: AppContext, batch_id: str, holder: str, pause: float) -> Iterator[Lease | None]:
    """A renewed lease on a batch's own work, or None while somebody else has it.

    Given back at the end, unless the work has done so with its last write; if the work is not over then, housekeeping
    starts it again after `pause` seconds.
    """
    seconds = context.settings.lease_seconds
    with context.database.write() as session:
        lease = acquire_batch(session, batch_id, holder, seconds)
    if lease is None:
        yield None
        return

    def renew() -> bool:
        if lease.held:
            with context.database.write() as session:
                lease.renew(session, seconds)
        return True

    try:
        with Heartbeat(renew, seconds / 3):
            yield lease
    finally:
        if lease.held:
            try:
                with context.database.write() as session:
                    lease.release(session, pause)
            except LeaseLost as error:
                log.warning("lease not given back: %s", error, extra={"batch_id": batch_id})
