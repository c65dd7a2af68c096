"""The Celery application without its tasks: all that beat and Flower need. `tasks.app` adds them for workers."""

import functools
from datetime import datetime
from typing import Any

import redis
from celery import Celery, signals
from celery.schedules import schedule

from batchyard import logs, settings
from tasks import idle


class TickSchedule(schedule):  # type: ignore[misc]  # Celery has no types
    """Every so many seconds, and less often while the deployment is idle."""

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        is_due, seconds = super().is_due(last_run_at)
        silent = self.now() - self.maybe_make_aware(last_run_at)
        if is_due and silent < idle.TICKS * self.run_every and idle.is_marked(_redis()):
            return False, self.run_every.total_seconds()
        return is_due, seconds


@functools.cache
def _redis() -> redis.Redis:
    return idle.impatient(settings.load().redis_url)


app = Celery("batchyard")
app.config_from_object("celeryconfig")


@app.on_after_configure.connect
def _tick_less_while_idle(sender: Celery, **_: Any) -> None:
    tick = sender.conf.beat_schedule["housekeeping"]
    tick["schedule"] = TickSchedule(tick["schedule"])


@signals.setup_logging.connect
def _configure_logging(**_: Any) -> None:
    logs.configure(settings.load().log_level)
