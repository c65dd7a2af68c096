"""Metrics: a snapshot of the deployment for /metrics, /v1/queue and `metrics.json`."""

import json
import logging
import os
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import redis
from kombu.transport.redis import Channel

from batchyard import queues
from inference.residents.status import EngineStatus
from store import queue, webhooks
from store.batches import BATCHES
from store.jobs.lifecycle import JOBS
from store.queue import JobsOfRecipe, QueueSnapshot
from store.records import Batch, Job
from tasks.context import AppContext
from tasks.execution import engine_status, tally
from tasks.live import traffic
from tasks.live.traffic import LiveTraffic
from tasks.port import port
from tasks.scheduling import deadlines, demand
from tasks.scheduling.demand import Demand
from tasks.scheduling.forecast import Forecast

log = logging.getLogger(__name__)

FILE = "metrics.json"
JOB_TICK_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
MOST = 100
"""Only this many unfinished batches, and as many jobs, are listed with deadline and ETA: those due first."""


@dataclass(frozen=True)
class BatchState:
    """One unfinished batch: seconds until its deadline and until its expected end (None if unknown)."""

    batch_id: str
    model: str | None
    sla: str
    due_seconds: float
    eta_seconds: float | None


@dataclass(frozen=True)
class JobState:
    job_id: str
    recipe: str
    sla: str
    due_seconds: float
    eta_seconds: float | None


@dataclass(frozen=True)
class Snapshot:
    """The deployment `at` one time. While Redis is away, what it counts is None.

    `totals` are requests, tokens, errors and retries by (name, model), `job_totals` likewise of jobs (jobs.progress),
    since Redis last lost its data. `processes` have resident bytes and CPU seconds with their descendants.
    """

    at: float
    queue: QueueSnapshot
    batches: list[BatchState]
    recipes: list[JobsOfRecipe]
    jobs: list[JobState]
    messages: dict[str, int] | None
    engines: list[EngineStatus] | None
    live: list[LiveTraffic] | None
    totals: dict[tuple[str, str], int] | None
    job_totals: dict[tuple[str, ...], int] | None
    demand: dict[str, Demand]
    deliveries: dict[str, int]
    processes: dict[str, tuple[int, float]]


def collect(context: AppContext, *, with_processes: bool = True, project_id: str | None = None) -> Snapshot:
    """Take a snapshot of a project's queue, or of all (None). Its cost grows with the queue, not with past batches."""
    now = time.time()
    with context.database.read() as session:
        unfinished = queue.snapshot(session, project_id)
        batches, jobs = queue.due_first(session, BATCHES, MOST), queue.due_first(session, JOBS, MOST)
        recipes = queue.unfinished_jobs(session)
        deliveries = webhooks.undelivered(session)
    forecasts = deadlines.read(context, [*(batch.id for batch in batches), *(job.id for job in jobs)])
    in_redis: dict[str, Any] = dict.fromkeys(("messages", "engines", "live", "totals", "job_totals"))
    try:
        engines = engine_status.read(context)
        in_redis |= {"messages": _messages(context), "engines": engines, "totals": tally.read(context)}
        in_redis |= {"job_totals": dict(port().totals(context)), "live": traffic.recent(context, engines)}
    except redis.RedisError as error:
        log.warning("metrics without Redis: %s", error)
    return Snapshot(
        at=now,
        queue=unfinished,
        batches=[
            BatchState(batch.id, batch.model, batch.sla, *_times(batch, forecasts.get(batch.id), now))
            for batch in batches
        ],
        recipes=recipes,
        jobs=[JobState(job.id, job.recipe, job.sla, *_times(job, forecasts.get(job.id), now)) for job in jobs],
        **in_redis,
        demand=demand.read(context),
        deliveries=deliveries,
        processes=_processes(context.settings.data) if with_processes else {},
    )


def tick(context: AppContext) -> None:
    try:
        engines = engine_status.read(context)
    except redis.RedisError as error:
        log.warning("demand without Redis: %s", error)
    else:
        demand.update(context, Counter(engine.model for engine in engines if engine.state != "starting"))
    write(context)


def write(context: AppContext) -> None:
    """Write `metrics.json` in the data folder atomically."""
    snapshot = collect(context)
    document = asdict(snapshot)
    for name in ("engines", "live"):
        entries = getattr(snapshot, name)
        document[name] = None if entries is None else [entry.model_dump() for entry in entries]
    document["totals"] = [
        {"what": name, "model": model, "amount": amount} for (name, model), amount in (snapshot.totals or {}).items()
    ]
    job_totals = snapshot.job_totals or {}
    document["job_totals"] = [
        {"what": what, "labels": labels, "amount": amount} for (what, *labels), amount in job_totals.items()
    ]
    document["processes"] = {
        name: {"resident_bytes": size, "cpu_seconds": cpu} for name, (size, cpu) in snapshot.processes.items()
    }
    file = context.settings.data / FILE
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        context.settings.data.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(document, indent=1) + "\n")
        temporary.replace(file)
    except OSError as error:
        log.warning("%s not written: %s", file, error)


def _times(entry: Batch | Job, forecast: Forecast | None, now: float) -> tuple[float, float | None]:
    return deadlines.deadline(entry) - now, None if forecast is None else max(0.0, forecast.at - now)


def _messages(context: AppContext) -> dict[str, int]:
    """Return the number of messages that wait in each queue, a Redis list per priority."""
    with context.redis.pipeline(transaction=False) as pipeline:
        for name in queues.NAMES:
            for step in queues.PRIORITY_STEPS:
                pipeline.llen(f"{name}{Channel.sep}{step}" if step else name)
        lengths: list[int] = pipeline.execute()
    steps = len(queues.PRIORITY_STEPS)
    return {name: sum(lengths[index * steps :][:steps]) for index, name in enumerate(queues.NAMES)}


def _processes(data: Path) -> dict[str, tuple[int, float]]:
    """Return (resident bytes, CPU seconds) of each process of a local stack on this machine; empty without one."""
    files = sorted((data / "run").glob("*.pid"))
    if not files:
        return {}
    children: defaultdict[int, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter():  # `Process.children` would go through all processes for each one
        with suppress(psutil.Error):
            children[process.ppid()].append(process)
    usage = {}
    for file in files:
        try:
            members = [psutil.Process(int(file.read_text()))]
        except (OSError, ValueError, psutil.Error):
            continue  # it is restarting
        size, cpu = 0, 0.0
        for member in members:
            members += children[member.pid]
            with suppress(psutil.Error), member.oneshot():
                times = member.cpu_times()
                size, cpu = size + member.memory_info().rss, cpu + times.user + times.system
        usage[file.stem] = size, cpu
    return usage
