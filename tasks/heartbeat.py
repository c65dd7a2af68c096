"""Heartbeats: renew a lease during its work, and stop work that is no longer wanted."""

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
from sqlalchemy.orm import Session

from batchyard.backoff import Backoff
from batchyard.errors import ArtifactMissing, BatchyardError, LeaseLost, UnavailableError
from store.leases import Lease, acquire_batch, acquire_job, record_failure
from tasks.context import AppContext

log = logging.getLogger(__name__)


def holder(task_id: str) -> str:
    """Return a lease's holder: machine, process id and task, by which people find it."""
    return f"{machine()}/{os.getpid()}/{task_id}"


def has_died(holder: str) -> bool:
    """True if the holder was a process of this machine that no longer exists; False for other machines."""
    host, pid, _ = holder.split("/", 2)
    return host == machine() and not psutil.pid_exists(int(pid))


@functools.cache
def machine() -> str:
    """Return the host's name with a hash that tells hosts and containers apart."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        identity = str(uuid.getnode())
    return f"{socket.gethostname()}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


class Heartbeat:
    """A thread that calls `beat` every `interval` seconds until the block ends.

    `beat` returns True while the work is wanted. After False or LeaseLost, `stopped` is set, and `beat` is called no
    more. Who sets `stopped` in another thread does not end the beats: the lease is needed until the work has stopped.
    """

    def __init__(self, beat: Callable[[], bool], interval: float) -> None:
        self._beat = beat
        self._interval = interval
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
        wanted = True
        while wanted and not self._ended.wait(self._interval):
            try:
                wanted = self._beat()
            except LeaseLost as error:
                log.warning("stopping: %s", error)
                wanted = False
            except UnavailableError as error:
                log.warning("lease not renewed: %s", error)
            except Exception:  # without its heartbeat the work would lose its lease in silence
                log.exception("lease not renewed")
        if not wanted:
            self.stopped.set()


BACKOFF = Backoff(first=2.0, longest=60.0)
"""Between the attempts at a batch's validation or finishing."""


@contextmanager
def _hold(
    acquire: Callable[[Session, str, str, float], Lease | None],
    context: AppContext,
    record_id: str,
    holder: str,
    pause: float,
) -> Iterator[Lease | None]:
    """Hold and renew the lease on the own work of a batch or job; yields None if another holder has it.

    Releases the lease at the end, unless the work's last write did. If work remains then, housekeeping starts it again
    after `pause` seconds. An exception is recorded as the reason why the work does not move, and is raised. It counts
    as an attempt (`give_up` of `store.batches` and `store.jobs.lifecycle`) unless a part of the deployment was away.
    """
    seconds = context.settings.lease_seconds
    with context.database.write() as session:
        lease = acquire(session, record_id, holder, seconds)
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
    except LeaseLost:
        raise
    except Exception as error:
        reason = error.message if isinstance(error, BatchyardError) else f"{type(error).__name__}: {error}"
        counted = not isinstance(error, UnavailableError) or isinstance(error, ArtifactMissing)
        try:
            with context.database.write() as session:
                record_failure(session, lease, reason, counted=counted, backoff=BACKOFF)
        except (LeaseLost, UnavailableError) as failure:  # it runs out
            log.warning("lease not given back: %s", failure, extra={"id": lease.id})
        raise
    if lease.held:
        try:
            with context.database.write() as session:
                lease.release(session, pause, attempts=0, attempt_error=None)
        except LeaseLost as error:
            log.warning("lease not given back: %s", error, extra={"id": record_id})


hold_batch = functools.partial(_hold, acquire_batch)
hold_job = functools.partial(_hold, acquire_job)
