"""The jobs whose items are in the memory of this process."""

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from batchyard.recipes import Called, FlowRecipe, Options
from jobs.running.judging import Judges, Verdict
from jobs.running.live import LiveItems
from jobs.running.notices import Notices
from jobs.running.segments import SegmentCutter
from recipes.tools.pool import ToolCalls
from store.formats import items as items_file
from store.leases import Lease
from store.records import Job
from tasks.context import AppContext

LIVE_BYTES = 512 * 1024 * 1024
"""Texts of all jobs in this process; the job that was advanced longest ago is dropped first."""


@dataclass
class LiveJob:
    """A job in memory, exact while `epoch` is that of the job's last lease.

    `lines` are the next ones of each stage's batch, `cursors` the ids of the last result chunks that were read. `at` is
    time.monotonic() of the last tick. `verdicts` are outcomes to send, of position, turn and index.
    """

    epoch: int
    job: Job
    recipe: FlowRecipe[Any]
    options: Options
    items: LiveItems
    reader: items_file.Reader
    cutter: SegmentCutter
    admitted: int
    lines: dict[str, int]
    cursors: dict[str, int]
    reply_id: int = 0
    at: float = 0.0
    starving: list[str] = field(default_factory=list)
    verdicts: deque[tuple[int, int, int, Verdict | Called]] = field(default_factory=deque)
    notices: Notices = field(default_factory=Notices)


class LiveJobs:
    """The jobs in memory, and the processes that judge their answers and run their tools."""

    def __init__(self) -> None:
        self._jobs: dict[str, LiveJob] = {}
        self._lock = threading.Lock()
        self._judges: Judges | None = None
        self._tools: ToolCalls | None = None

    def get(self, job_id: str, lease: Lease) -> LiveJob | None:
        """Return a job, None if it is not here or another process has advanced it since."""
        live = self._jobs.get(job_id)
        return None if live is None or live.epoch + 1 != lease.epoch else live

    def keep(self, live: LiveJob) -> None:
        self._jobs[live.job.id] = live

    def drop(self, job_id: str) -> None:
        """Forget a job: its next tick builds it again from its records."""
        self._jobs.pop(job_id, None)

    def clear(self) -> None:
        """Forget all jobs, and end the calls of their tools: as the end of this process does."""
        self._jobs.clear()
        with self._lock:
            tools, self._tools = self._tools, None
        if tools is not None:
            tools.close()

    def evict_others(self, job_id: str) -> None:
        """Drop other jobs while all of them hold more than LIVE_BYTES."""
        with self._lock:
            jobs = [*self._jobs.values()]
            excess = sum(live.items.bytes for live in jobs) - LIVE_BYTES
            for live in sorted(jobs, key=lambda live: live.at):
                if excess <= 0:
                    return
                if live.job.id != job_id:
                    excess -= live.items.bytes
                    self.drop(live.job.id)

    def judges(self, context: AppContext) -> Judges:
        """Return the processes that judge, which start with the first call."""
        with self._lock:
            if self._judges is None:
                settings = context.settings
                self._judges = Judges(settings.recipes, settings.judge_processes, settings.judge_seconds)
            return self._judges

    def tools(self, context: AppContext) -> ToolCalls:
        with self._lock:
            if self._tools is None:
                settings = context.settings
                self._tools = ToolCalls(settings.recipes, settings.tool_processes, settings.tool_sandbox)
            return self._tools
