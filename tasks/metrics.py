"""What there is to see of a deployment's health, in one place: for /metrics, /v1/queue and `metrics.json`."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import redis
from celery import current_app
from kombu.transport.redis import Channel

from store import queue, webhooks
from store.queue import Queue
from store.records import Batch
from tasks.context import AppContext
from tasks.execution import engine_status, progress
from tasks.execution.engine_status import EngineState
from tasks.scheduling import deadlines
from tasks.scheduling.forecast import Forecast

log = logging.getLogger(__name__)

FILE = "metrics.json"
BATCHES = 100
"""Of so many unfinished batches, those that are due first, the deadline and the ETA are shown one by one."""


@dataclass(frozen=True)
class BatchState:
    """One unfinished batch: seconds until it is due and until it will be done (None: unknown)."""

    batch_id: str
    model: str | None
    sla: str
    due_seconds: float
    eta_seconds: float | None


@dataclass(frozen=True)
class Snapshot:
    """The deployment at one moment.

    Attributes:
        messages: in each of Celery's queues; None where Redis is away, as are engines and totals then.
        totals: of requests, tokens, errors and retries, by (what, model), since Redis lost them.
        deliveries: to webhooks, by state, those that are not delivered.
        processes: (resident bytes, CPU seconds) of each local process and all it has started.
    """

    at: float
    queue: Queue
    batches: list[BatchState]
    messages: dict[str, int] | None
    engines: list[EngineState] | None
    totals: dict[tuple[str, str], int] | None
    deliveries: dict[str, int]
    processes: dict[str, tuple[int, float]]


def collect(context: AppContext, *, with_processes: bool = True) -> Snapshot:
    """Look at everything now. Costs what is in the queue, not what has ever been; local processes cost the most."""
    moment = time.time()
    with context.database.read() as session:
        now = queue.snapshot(session)
        first = queue.due_first(session, BATCHES)
        deliveries = webhooks.undelivered(session)
    expected = deadlines.read(context, [batch.id for batch in first])
    messages: dict[str, int] | None = None
    alive: list[EngineState] | None = None
    totals: dict[tuple[str, str], int] | None = None
    try:
        messages, alive, totals = _messages(context), engine_status.read(context), progress.totals(context)
    except redis.RedisError as error:
        log.warning("metrics without Redis: %s", error)
    batches = [_state(batch, expected.get(batch.id), moment) for batch in first]
    processes = _processes(context.settings.data) if with_processes else {}
    return Snapshot(moment, now, batches, messages, alive, totals, deliveries, processes)


def write(context: AppContext) -> None:
    """Write `metrics.json` in the data folder, whole or not at all."""
    seen = collect(context)
    document = asdict(seen)
    document["totals"] = [
        {"what": what, "model": model, "amount": amount} for (what, model), amount in (seen.totals or {}).items()
    ]
    document["processes"] = {
        name: {"resident_bytes": size, "cpu_seconds": cpu} for name, (size, cpu) in seen.processes.items()
    }
    file = context.settings.data / FILE
    written = file.with_suffix(f".{os.getpid()}")
    try:
        context.settings.data.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps(document, indent=1) + "\n")
        written.replace(file)
    except OSError as error:
        log.warning("%s not written: %s", file, error)


def _state(batch: Batch, expected: Forecast | None, moment: float) -> BatchState:
    return BatchState(
        batch_id=batch.id,
        model=batch.model,
        sla=batch.sla,
        due_seconds=deadlines.deadline(batch) - moment,
        eta_seconds=None if expected is None else max(0.0, expected.at - moment),
    )


def _messages(context: AppContext) -> dict[str, int]:
    """Messages that no worker has taken; kombu keeps each queue as one list for each priority, the first unmarked."""
    queues = [queue.name for queue in current_app.conf.task_queues]
    steps = current_app.conf.broker_transport_options["priority_steps"]
    with context.redis.pipeline(transaction=False) as pipeline:
        for name in queues:
            for step in steps:
                pipeline.llen(f"{name}{Channel.sep}{step}" if step else name)
        lengths: list[int] = pipeline.execute()
    return {name: sum(lengths[index * len(steps) :][: len(steps)]) for index, name in enumerate(queues)}


def _processes(data: Path) -> dict[str, tuple[int, float]]:
    """The processes of a local stack on this machine; none where there is no such stack."""
    found = {}
    for file in sorted((data / "run").glob("*.pid")):
        try:
            process = psutil.Process(int(file.read_text()))
            family = [process, *process.children(recursive=True)]
        except (OSError, ValueError, psutil.Error):
            continue  # it is just being started again
        size, cpu = 0, 0.0
        for member in family:
            try:
                with member.oneshot():
                    times = member.cpu_times()
                    size, cpu = size + member.memory_info().rss, cpu + times.user + times.system
            except psutil.Error:
                continue
        found[file.stem] = size, cpu
    return found
