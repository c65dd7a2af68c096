"""The watchdog of recipes: it ends a worker in which a step of a recipe hangs.

Nothing can interrupt a step, and one in a regular expression lets no other thread of its process run. So the watchdog
is a process beside the worker, and shared memory tells it which step each thread is in. It records which item hangs,
gives the process's leases on jobs back, and kills it. In the next worker the item ends without another step.
"""

from __future__ import annotations

import faulthandler
import itertools
import logging
import mmap
import os
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # what records is imported when something hangs: hardly any watchdog ever needs its 100 MB
    import psutil

    from store.artifacts import Artifacts
    from store.database import Database

log = logging.getLogger("jobs.running.watchdog")

SLOTS = 128
"""Ticks that are watched at once: more than a worker has threads."""
LONGEST_PAUSE = 1.0
MEASURED_SECONDS = 1.0
MEASUREMENTS = 10
"""Attempts to get the stacks: a busy machine may give the process no turn."""
_SLOT = struct.Struct("<QQQqqii64s")
_DUMP_BYTES = 1 << 20
_FRAME = re.compile(r'File "(.+)", line (\d+) in ')


class ProgramStep(NamedTuple):
    """A step of an item's program after a turn. `number` is unique in its process; 0 is no step.

    `thread` and `native_id` identify its thread in Python and in the operating system.
    """

    number: int
    thread: int
    native_id: int
    epoch: int
    position: int
    life: int
    turn: int
    job_id: str


class _Watched(AbstractContextManager[None]):
    """The steps of one tick, in one slot of the shared memory."""

    def __init__(self, memory: mmap.mmap, slot: int, numbers: Iterator[int], job_id: str, epoch: int) -> None:
        self._memory = memory
        self._offset = slot * _SLOT.size
        self._numbers = numbers
        self._thread = (threading.get_ident(), threading.get_native_id())
        self._job_id = job_id.encode()
        self._epoch = epoch

    def step(self, position: int, life: int, turn: int) -> _Watched:
        """Note that a step begins. It ends with the `with` block that this opens."""
        values = (next(self._numbers), *self._thread, self._epoch, position, life, turn, self._job_id)
        _SLOT.pack_into(self._memory, self._offset, *values)
        return self

    def __exit__(self, *_: object) -> None:
        _SLOT.pack_into(self._memory, self._offset, 0, 0, 0, 0, 0, 0, 0, b"")


class Watchdog:
    """The watchdog of this process. It starts with the first tick."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: the longest that a step may take."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._free = list(range(SLOTS))
        self._file = tempfile.TemporaryFile(prefix="batchyard-steps-")  # noqa: SIM115  it lives as long as the process
        self._file.truncate(SLOTS * _SLOT.size)
        self._memory = mmap.mmap(self._file.fileno(), SLOTS * _SLOT.size)
        self._dump = tempfile.TemporaryFile(prefix="batchyard-dump-")  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        # Written by a handler in C, so also when a thread does not give the others a turn.
        faulthandler.register(signal.SIGUSR2, file=self._dump, all_threads=True)

    @contextmanager
    def tick(self, job_id: str, epoch: int) -> Iterator[Callable[[int, int, int], AbstractContextManager[None]]]:
        """Watch a tick of a job. Yields what each step of it is wrapped in."""
        with self._lock:
            self._start()
            slot = self._free.pop()
        try:
            yield _Watched(self._memory, slot, self._numbers, job_id, epoch).step
        finally:
            with self._lock:
                self._free.append(slot)

    def _start(self) -> None:
        """Start the watchdog, also if it has died."""
        if self._process is not None and self._process.poll() is None:
            return
        files = (self._file.fileno(), self._dump.fileno())
        command = [sys.executable, "-m", __name__, *map(str, files), str(self._seconds)]
        # Its standard input ends when this process does, however that happens.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=files)


_watchdog: Watchdog | None = None
_starting = threading.Lock()


def watchdog(seconds: float) -> Watchdog:
    global _watchdog
    with _starting:
        if _watchdog is None:
            _watchdog = Watchdog(seconds)
        return _watchdog


class Patience:
    """Notices the steps that take too long.

    It counts its own checks, not a clock: while the whole machine stands still, no step is late.
    """

    def __init__(self, checks: int) -> None:
        """`checks`: a step that is seen more often than this hangs."""
        self._checks = checks
        self._seen: dict[int, int] = {}

    def hung(self, steps: Sequence[ProgramStep]) -> list[ProgramStep]:
        """Return those of the present steps that hang. Call this at every check."""
        self._seen = {step.number: self._seen.get(step.number, 0) + 1 for step in steps}
        return [step for step in steps if self._seen[step.number] > self._checks]

    def forget(self) -> None:
        """Begin again: the process that makes the steps stood still."""
        self._seen.clear()


def place(dump: str, thread: int) -> str | None:
    """Return file and line of a thread's recipe in a faulthandler dump, None if not there."""
    stack = dump.partition(f"hread 0x{thread:016x} ")[2].partition("\n\n")[0]
    for (file, line), (outer, _) in itertools.pairwise(_FRAME.findall(stack)):
        if outer.endswith("/batchyard/recipes/program.py"):
            return f"{Path(file).name}, line {line}"
    return None


def _steps(memory: mmap.mmap) -> list[ProgramStep]:
    slots = [slot for slot in _SLOT.iter_unpack(memory[:]) if slot[0]]
    return [ProgramStep._make((*values, name.rstrip(b"\0").decode())) for *values, name in slots]


def main() -> None:
    """Watch the parent process until it ends. The arguments: shared memory, the file of dumps, and seconds."""
    steps_file, dump_file, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    parent = os.getppid()
    memory = mmap.mmap(steps_file, SLOTS * _SLOT.size, prot=mmap.PROT_READ)
    pause = min(LONGEST_PAUSE, seconds / 4)
    patience = Patience(round(seconds / pause))
    while not select.select([sys.stdin], [], [], pause)[0]:
        if patience.hung(_steps(memory)):
            places = _places(parent, memory, patience, dump_file)
            if places:
                _end(parent, places, seconds)
                return


def _places(parent: int, memory: mmap.mmap, patience: Patience, dump_file: int) -> dict[ProgramStep, str | None]:
    """Return the steps that hang, and where. None of them if the process has only stood still."""
    import psutil

    process = psutil.Process(parent)
    if process.status() == psutil.STATUS_STOPPED:
        patience.forget()
        return {}
    os.lseek(dump_file, 0, os.SEEK_SET)  # the worker writes with this offset
    os.ftruncate(dump_file, 0)
    os.kill(parent, signal.SIGUSR2)
    before = _cpu_seconds(process)
    for _ in range(MEASUREMENTS):
        time.sleep(MEASURED_SECONDS)
        after = _cpu_seconds(process)
        if dump := os.pread(dump_file, _DUMP_BYTES, 0).decode(errors="replace"):
            break
    steps = patience.hung(_steps(memory))
    # One in a regular expression keeps the others from their turns, wherever they are. They look for a turn every 5 ms,
    # which takes a little time, too.
    spent = {step: after.get(step.native_id, 0.0) - before.get(step.native_id, 0.0) for step in steps}
    most = max(spent.values(), default=0.0)
    running = [step for step in steps if spent[step] > most / 4]
    return {step: place(dump, step.thread) for step in running or steps}


def _end(parent: int, places: Mapping[ProgramStep, str | None], seconds: float) -> None:
    """Record what hangs, and kill the process that it hangs in, with all its children."""
    import psutil

    try:
        _record(parent, places, seconds)
    finally:
        # Without a record the item hangs again, and the lost worker counts as an attempt at the job.
        process = psutil.Process(parent)
        for child in process.children(recursive=True):
            if child.pid != os.getpid():
                child.kill()
        process.kill()


def _cpu_seconds(process: psutil.Process) -> dict[int, float]:
    """Return the CPU time of each thread; none where a system does not say it, as macOS."""
    import psutil

    try:
        return {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
    except psutil.AccessDenied:
        return {}


def _record(parent: int, places: Mapping[ProgramStep, str | None], seconds: float) -> None:
    from batchyard import logs, settings
    from store.artifacts import Artifacts
    from store.database import Database
    from tasks.heartbeat import machine

    configuration = settings.load()
    logs.configure(configuration.log_level)
    reasons = {
        step: f"a step of the recipe took longer than {seconds:g} seconds{f' ({where})' if where else ''}"
        for step, where in places.items()
    }
    database, artifacts = Database(configuration.database), Artifacts(configuration.artifacts)
    record(database, artifacts, f"{machine()}/{parent}/", reasons)


def record(database: Database, artifacts: Artifacts, process: str, reasons: Mapping[ProgramStep, str]) -> None:
    """Record why the items of these steps hang; give the process's leases on jobs back.

    A step is recorded only while no other process advances its job: what that one decides counts. `process` is what the
    names of the leases begin with. Raises UnavailableError; then nothing is recorded.
    """
    import pyarrow as pa

    from batchyard import json_lines
    from store import leases
    from store.formats import job_chunks
    from store.jobs import chunk_records

    chunks = {}
    for step, reason in reasons.items():
        value = json_lines.dumps({"message": reason}).decode()
        row = {"position": step.position, "life": step.life, "turn": step.turn, "index": 0, "kind": job_chunks.HANGS}
        table = pa.Table.from_pylist([row | {"value": value}], schema=job_chunks.JUDGEMENT)
        chunks[step] = job_chunks.write(artifacts, table)
    with database.write() as session:
        for step, sha256 in chunks.items():
            if leases.revoke_job(session, step.job_id, step.epoch):
                chunk_records.add(session, step.job_id, "judgement", sha256, 1)
        leases.give_back_jobs(session, process)
    for step, reason in reasons.items():
        log.error("%s; its worker ends", reason, extra={"job_id": step.job_id, "position": step.position})


if __name__ == "__main__":
    main()
