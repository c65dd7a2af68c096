"""The Celery application and its tasks: each task is one call."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery, Task, signals
from celery.exceptions import Ignore

from batchyard import logs, settings
from batchyard.errors import LeaseLost, UnavailableError
from tasks import advance, housekeeping, metrics
from tasks.context import context
from tasks.execution import result_cache
from tasks.finishing import finalize, garbage, retention
from tasks.heartbeat import holder
from tasks.recurring import schedules
from tasks.scheduling import deadlines
from tasks.steps import registry
from tasks.webhooks import delivery

log = logging.getLogger(__name__)


RETRY_SECONDS = 5.0
RETRIES = 20
"""Messages of one batch are sent again this often. After that only housekeeping does it, when their leases run out."""


class _Task(Task):  # type: ignore[misc]  # Celery has no types
    """A task that waits while a part of the deployment is away. A task of beat's has its next tick for that."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        try:
            return super().__call__(*args, **kwargs)
        except LeaseLost as error:
            log.warning("%s stops: %s", self.name, error)
            raise Ignore from error
        except UnavailableError as error:
            log.warning("%s waits: %s", self.name, error)
            if self.name.startswith(("batch.", "post.")) and self.request.retries < RETRIES:
                raise self.retry(countdown=RETRY_SECONDS, max_retries=RETRIES) from error
            raise Ignore from error


app = Celery("batchyard", task_cls=_Task)
app.config_from_object("celeryconfig")


@signals.setup_logging.connect
def _configure_logging(**_: Any) -> None:
    logs.configure(settings.load().log_level)


@app.task(name="batch.validate", bind=True)
def validate(task: Task, batch_id: str) -> None:
    advance.validate(context(), batch_id, holder(task.request.id))


@app.task(name="batch.segment", bind=True)
def run_segment(task: Task, segment_id: int, epoch: int) -> None:
    advance.run_segment(context(), segment_id, epoch, holder(task.request.id))


@app.task(name="batch.merge", bind=True)
def merge(task: Task, batch_id: str) -> None:
    if not finalize.merge(context(), batch_id, holder(task.request.id)):
        raise Ignore  # another worker is finishing this batch: end this chain


@app.task(name="batch.finish", bind=True)
def finish(task: Task, batch_id: str) -> None:
    finalize.end(context(), batch_id, holder(task.request.id))


def _register_step(name: str) -> None:
    @app.task(name=f"post.{name}", bind=True)
    def run_step(task: Task, batch_id: str, position: int) -> None:
        if not finalize.run_step(context(), batch_id, position, holder(task.request.id)):
            raise Ignore


for _name in (*(step.name for step in registry.STEPS.load()), finalize.UNINSTALLED):
    _register_step(_name)


@app.task(name="housekeeping.tick")
def tick() -> None:
    housekeeping.tick(context())


@app.task(name="housekeeping.deadlines")
def update_forecasts() -> None:
    deadlines.tick(context())


@app.task(name="housekeeping.metrics")
def write_metrics() -> None:
    metrics.tick(context())


@app.task(name="schedule.tick")
def run_schedules() -> None:
    schedules.tick(context())


@app.task(name="housekeeping.collect")
def collect_garbage(interval_seconds: float) -> None:
    garbage.tick(context(), interval_seconds)


@app.task(name="housekeeping.purge")
def purge_old_records() -> None:
    retention.tick(context())


@app.task(name="housekeeping.evict")
def evict_cached_answers() -> None:
    result_cache.evict(context())


@app.task(name="webhook.ring")
def enqueue_due_deliveries() -> None:
    delivery.enqueue_due(context())


@app.task(name="webhook.deliver")
def deliver_to_webhook(delivery_id: str, attempts: int) -> None:
    delivery.deliver(context(), delivery_id, attempts)
