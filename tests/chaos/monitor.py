"""What a campaign looks at all the while: whether the deployment is ready, what is answered, what is in flight."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from batchyard.statuses import TERMINAL
from tests.chaos.deployment import LEASE_SECONDS, Deployment
from tests.chaos.faults import Fault
from tests.chaos.program import first_word
from tests.chaos.workload import Workload

SAMPLE_SECONDS = 0.5
STATUSES = """
SELECT id, status, completed + failed FROM batches WHERE job_id IS NULL
UNION ALL
SELECT jobs.id, jobs.status, coalesce(sum(batches.completed + batches.failed), 0)
FROM jobs LEFT JOIN batches ON batches.job_id = jobs.id GROUP BY jobs.id, jobs.status
"""
"""Each batch and each job with its status and its requests that are answered."""


@dataclass
class CallLog:
    """Reads what the simulated engines have noted: a line for each request they ran, which begins with its name.

    `name_of` returns that name for a log and its line, or an empty text for a line that names none.
    """

    files: Sequence[Path]
    name_of: Callable[[Path, str], str] = first_word
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    by_tag: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _offsets: dict[Path, int] = field(default_factory=dict)

    def read(self) -> None:
        """Read what is new."""
        for path in self.files:
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            for line in whole.decode().splitlines():
                if name := self.name_of(path, line):
                    self.counts[name] += 1
                    self.by_tag[name.rpartition("-")[0]].add(name)


class Monitor:
    """Samples until `close`. Times are those of the monotonic clock."""

    def __init__(self, deployment: Deployment, workload: Workload) -> None:
        self._deployment = deployment
        self._workload = workload
        self._end = threading.Event()
        self.calls = CallLog(deployment.calls())
        self.statuses: dict[str, tuple[str, int]] = {}
        self.ready: list[float] = []
        self.progress: list[tuple[float, int]] = []
        self.in_flight: list[tuple[float, int]] = []
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._watch, self._probe)]
        for thread in self._threads:
            thread.start()

    def unfinished(self) -> list[str]:
        """Return the ids of the created batches and jobs that are not known to have ended."""
        return [sent.id for sent in self._workload.sent if self.statuses.get(sent.id, ("", 0))[0] not in TERMINAL]

    def recovery(self, fault: Fault) -> float | None:
        """Return seconds from a fault's end until the deployment was ready and had made progress; None if it never did.

        Progress is an answer stored, or a batch or a job ended.
        """
        assert fault.ended is not None
        before = max((done for at, done in self.progress if at <= fault.ended), default=0)
        ready = next((at for at in self.ready if at > fault.ended), None)
        moved = next((at for at, done in self.progress if at > fault.ended and done > before), None)
        return None if ready is None or moved is None else max(ready, moved) - fault.ended

    def most_in_flight(self, fault: Fault) -> int:
        """Return the most requests that engines had begun and the database did not have yet, around a fault."""
        assert fault.ended is not None
        until = fault.ended + LEASE_SECONDS + 5
        return max((number for at, number in self.in_flight if fault.began - 1 <= at <= until), default=0)

    def _watch(self) -> None:
        connection = None
        while not self._end.wait(SAMPLE_SECONDS):
            self.calls.read()
            try:
                if connection is None or connection.closed:
                    connection = self._deployment.connect()
                rows = connection.execute(STATUSES).fetchall()
            except psycopg.Error:
                connection = None
                continue
            self.statuses = {str(id_): (str(status), int(str(done))) for id_, status, done in rows}
            now = time.monotonic()
            ended = sum(status in TERMINAL for status, _ in self.statuses.values())
            self.progress.append((now, sum(done for _, done in self.statuses.values()) + ended))
            self.in_flight.append((now, self._begun()))

    def _begun(self) -> int:
        begun = 0
        for sent in list(self._workload.sent):
            status, done = self.statuses.get(sent.id, ("", 0))
            if sent.tag is not None and status not in TERMINAL:
                begun += max(0, len(self.calls.by_tag[sent.tag]) - done)
        return begun

    def _probe(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            if self._deployment.ready():
                self.ready.append(time.monotonic())

    def close(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        self.calls.read()
