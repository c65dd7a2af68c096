"""Housekeeping, from beat: recovers lost work from the database, and sends the messages of what is due by the clock."""

import contextlib
import logging
import math
import time

import redis

from store import leases, queue, schedules, segments, webhooks
from store.batches import BATCHES
from store.jobs.lifecycle import JOBS
from tasks import idle, messages
from tasks.advance import advance
from tasks.context import AppContext
from tasks.execution import progress
from tasks.heartbeat import has_died
from tasks.port import port
from tasks.recovery import Recovered

log = logging.getLogger(__name__)

QUIET = "batchyard:quiet"
"""The Redis key that is there once all was looked through and nothing was unfinished."""
QUIET_SECONDS = 30
"""While nothing is unfinished all is looked through this often."""
FORECAST = "batchyard:forecast"
"""The Redis key that is there from one forecast until the next may be made."""
TICKS = 10
"""A message of something due expires after so many ticks, since each of these sends another."""


def tick(context: AppContext) -> None:
    """Have done what is due by the clock, and recover lost work. An idle deployment costs four small queries."""
    now = time.time()
    next_tick = now + idle.TICKS * context.settings.housekeeping_seconds
    with context.database.read() as session:
        scheduled = schedules.due(session, math.ceil(next_tick), 1)
        delivers = webhooks.any_due(session, next_tick)
        delivery_due = delivers and webhooks.any_due(session, now)
        unfinished = queue.any_unfinished(session) or JOBS.any_ends(session)
    schedule_due = any((schedule.next_run_at or 0) <= now for schedule in scheduled)
    if unfinished or scheduled or delivers:
        idle.clear(context.redis)
    else:
        idle.mark(context.redis, 2 * (next_tick - now))  # it is still there when the next is sent
    expires = TICKS * context.settings.housekeeping_seconds
    if schedule_due:
        messages.periodic("schedule.tick", expires)
    if delivery_due:
        messages.periodic("webhook.ring", expires)
    if unfinished or _wakes(context, QUIET, QUIET_SECONDS):
        recover(context)
        # Half a second less, so that no tick comes just too early. Once all has ended there is one more, at once: the
        # last one published a backlog for which a new batch would be told to wait.
        if _wakes(context, FORECAST, context.settings.forecast_seconds - 0.5) or not unfinished:
            messages.periodic("housekeeping.deadlines", expires)
    if unfinished:
        with contextlib.suppress(redis.RedisError):
            context.redis.delete(QUIET)


def _wakes(context: AppContext, key: str, seconds: float) -> bool:
    """True unless this returned True less than so many seconds ago; True while Redis is away."""
    try:
        return bool(context.redis.set(key, 1, nx=True, px=int(seconds * 1000)))
    except redis.RedisError:
        return True


def recover(context: AppContext) -> None:
    """Recover segments of expired or dead leases, end work past its window or past help, send lost messages."""
    with context.database.read() as session:
        dead = list(filter(has_died, leases.holders(session)))
    with context.database.write() as session:
        if dead:
            leases.end_leases(session, dead)
        recovered = segments.recover(session)
        # Jobs before batches, as in the ticks of jobs: in another order the two would wait for each other.
        start_jobs = port().recover(session)
        batches = Recovered.of(session, BATCHES)
    if recovered:
        log.warning("segments recovered", extra={"segments": recovered})
    batches.announce(context, "batch", messages.validate, progress.publish)
    start_jobs(context)
    advance(context)
