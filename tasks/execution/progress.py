"""Progress: `batch_job_status:{id}` in Redis, a JSON object that is only a copy and may be lost."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import redis

from batchyard.errors import UnavailableError
from store import speeds
from store.records import Batch, ResultChunk
from tasks.context import AppContext
from tasks.scheduling import deadlines

log = logging.getLogger(__name__)

KEPT_SECONDS = 7 * 86400


def key(batch_id: str) -> str:
    return f"batch_job_status:{batch_id}"


def measure(context: AppContext, batch_id: str) -> dict[str, Any]:
    with context.database.read() as session:
        batch = session.get_one(Batch, batch_id)
        rates = speeds.recent(session, ResultChunk.batch_id, batch_id) if batch.status == "in_progress" else {}
    rows_per_second, tokens_per_second = rates.get(batch_id, (None, None))
    now = time.time()
    is_running = batch.status == "in_progress" and batch.paused_at is None
    expected = deadlines.read(context, [batch_id]).get(batch_id) if is_running else None
    return {
        **{name: getattr(batch, name) for name in ("status", "total", "completed", "failed", "sla")},
        "rows_per_second": rows_per_second,
        "tokens_per_second": tokens_per_second,
        "eta_seconds": None if expected is None else max(0.0, expected.at - now),
        "updated_at": now,
    }


def publish(context: AppContext, batch_id: str) -> None:
    """Write a batch's progress to Redis. Log a warning if Redis or the database is away."""
    write(context, batch_id, measure)


def write(context: AppContext, record_id: str, measure: Callable[[AppContext, str], dict[str, Any]]) -> None:
    """Write to Redis what `measure` returns. Log a warning if Redis or the database is away."""
    try:
        context.redis.set(key(record_id), json.dumps(measure(context, record_id)), ex=KEPT_SECONDS)
    except (redis.RedisError, UnavailableError) as error:
        log.warning("progress not published: %s", error, extra={"id": record_id})


def read(context: AppContext, batch_ids: list[str]) -> dict[str, dict[str, Any]]:
    """Return the progress of each batch that has published any in the last minute. Return none if Redis is away."""
    if not batch_ids:
        return {}
    try:
        values = context.redis.mget([key(batch_id) for batch_id in batch_ids])
    except redis.RedisError as error:
        log.warning("progress not read: %s", error)
        return {}
    entries = {batch_id: json.loads(value) for batch_id, value in zip(batch_ids, values, strict=True) if value}
    began = time.time() - speeds.RECENT_SECONDS
    return {batch_id: entry for batch_id, entry in entries.items() if entry["updated_at"] > began}
