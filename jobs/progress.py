"""The progress of a job: `batch_job_status:{id}` in Redis, as for batches, counted in items; and totals of all jobs."""

import bisect
import json
import logging
import time
from collections.abc import Mapping
from typing import Any, cast

from batchyard.recipes import Check, Score
from store.records import Job
from tasks.context import AppContext
from tasks.execution import progress, tally
from tasks.metrics import JOB_TICK_SECONDS
from tasks.published import warned
from tasks.scheduling import deadlines

log = logging.getLogger(__name__)

TOTALS = "batchyard:job_totals"


def measure(context: AppContext, job_id: str) -> dict[str, Any]:
    with context.database.read() as session:
        job = session.get_one(Job, job_id)
    now = time.time()
    expected = deadlines.read(context, [job_id]).get(job_id) if job.status == "in_progress" else None
    return {
        **{name: getattr(job, name) for name in ("status", "recipe", "total", "completed", "failed", "stuck")},
        "waiting_for_verdict": job.waiting_for_verdict,
        "expired": job.expired_items,
        "cancelled": job.cancelled_items,
        "eta_seconds": None if expected is None else max(0.0, expected.at - now),
        "sla": job.sla,
        "updated_at": now,
    }


def count_failed_judgement(context: AppContext, call: Score | Check) -> None:
    """Count a judgement that failed in its process, by reward or gate, for /metrics."""
    tally.count(context, call.reward if isinstance(call, Score) else call.gate, {tally.JUDGEMENT_ERRORS: 1})


def count_items(context: AppContext, recipe: str, ends: Mapping[str, int], counters: Mapping[str, int]) -> None:
    amounts: dict[tuple[str, ...], int] = {("items", recipe, state): number for state, number in ends.items()}
    _count(context, amounts | {("counter", recipe, name): number for name, number in counters.items()})


def count_tick(context: AppContext, seconds: float, starving: Mapping[str, float]) -> None:
    """Count a tick, and the seconds of starving models before it."""
    bucket = bisect.bisect_left(JOB_TICK_SECONDS, seconds)
    amounts: dict[tuple[str, ...], int] = {("tick", str(bucket)): 1, ("tick_ms",): round(1000 * seconds)}
    _count(context, amounts | {("hungry_ms", model): round(1000 * waited) for model, waited in starving.items()})


def _count(context: AppContext, amounts: Mapping[tuple[str, ...], int]) -> None:
    """Add to the totals. They are counters that start again at 0 if Redis loses them."""
    with warned(log, "totals of jobs not counted"), context.redis.pipeline(transaction=False) as pipeline:
        for key, amount in amounts.items():
            pipeline.hincrby(TOTALS, json.dumps(key), amount)
        pipeline.execute()


def totals(context: AppContext) -> dict[tuple[str, ...], int]:
    """Return the totals by what they count and its labels. Raises redis.RedisError."""
    values = cast(dict[str, str], context.redis.hgetall(TOTALS))
    return {tuple(json.loads(key)): int(amount) for key, amount in values.items()}


def publish(context: AppContext, job_id: str) -> None:
    progress.write(context, job_id, measure)
