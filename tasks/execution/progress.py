"""Live progress: `batch_job_status:{id}` in Redis, a JSON object that can be lost without losing anything.

Counts come from the records; rates are measured over the last minute's parts; forecasts come from deadlines.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any, cast

import redis

from store import speeds
from store.records import Batch, ResultChunk
from tasks.context import AppContext
from tasks.scheduling import deadlines

log = logging.getLogger(__name__)

KEPT_SECONDS = 7 * 86400
TOTALS = "batchyard:totals"


def key(batch_id: str) -> str:
    return f"batch_job_status:{batch_id}"


def measure(context: AppContext, batch_id: str) -> dict[str, Any]:
    """The progress of a batch, as it is published."""
    with context.database.read() as session:
        batch = session.get_one(Batch, batch_id)
        rates = speeds.recent(session, ResultChunk.batch_id, batch_id) if batch.status == "in_progress" else {}
    rows_per_second, tokens_per_second = rates.get(batch_id, (None, None))
    moment = time.time()
    expected = deadlines.read(context, [batch_id]).get(batch_id) if batch.status == "in_progress" else None
    return {
        "status": batch.status,
        "total": batch.total,
        "completed": batch.completed,
        "failed": batch.failed,
        "rows_per_second": rows_per_second,
        "tokens_per_second": tokens_per_second,
        "eta_seconds": None if expected is None else max(0.0, expected.at - moment),
        "sla": batch.sla,
        "updated_at": moment,
    }


def publish(context: AppContext, batch_id: str) -> None:
    """Write a batch's progress to Redis. A broker that is away is no reason to stop work."""
    try:
        context.redis.set(key(batch_id), json.dumps(measure(context, batch_id)), ex=KEPT_SECONDS)
    except redis.RedisError as error:
        log.warning("progress not published: %s", error, extra={"batch_id": batch_id})


def count(context: AppContext, model: str, amounts: Mapping[str, int]) -> None:
    """Add to the model's totals, which /metrics shows: counters that begin anew when Redis loses them."""
    try:
        with context.redis.pipeline(transaction=False) as pipeline:
            for what, amount in amounts.items():
                pipeline.hincrby(TOTALS, f"{what} {model}", amount)
            pipeline.execute()
    except redis.RedisError as error:
        log.warning("totals not counted: %s", error)


def totals(context: AppContext) -> dict[tuple[str, str], int]:
    """The totals by (what, model). Raises redis.RedisError."""
    found = cast(dict[str, str], context.redis.hgetall(TOTALS))
    return {(what, model): int(amount) for key, amount in found.items() for what, _, model in [key.partition(" ")]}


def read(context: AppContext, batch_ids: list[str]) -> dict[str, dict[str, Any]]:
    """The published progress of each batch that has any. Raises nothing when Redis is away: nothing is known then."""
    if not batch_ids:
        return {}
    try:
        values = context.redis.mget([key(batch_id) for batch_id in batch_ids])
    except redis.RedisError as error:
        log.warning("progress not read: %s", error)
        return {}
    return {batch_id: json.loads(value) for batch_id, value in zip(batch_ids, values, strict=True) if value}
