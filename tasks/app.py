"""The tasks of the Celery application: each is one call."""

import contextlib
import functools
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psutil
from celery import Task, signals
from celery.concurrency.thread import TaskPool as Threads
from celery.exceptions import Ignore
from celery.worker import state
from sqlalchemy.orm import configure_mappers

from batchyard import kinship, queues, settings
from batchyard.errors import LeaseLost, UnavailableError
from batchyard.telemetry import spans
from store.records import now
from tasks import advance, housekeeping, messages, metrics
from tasks.celery_app import app
from tasks.context import AppContext, context, read_models
from tasks.execution import engine_status, result_cache, segment
from tasks.execution.running import RUNNING
from tasks.finishing import finalize, garbage
from tasks.heartbeat import holder
from tasks.intake import budgets
from tasks.live.starter import Starter
from tasks.port import port
from tasks.recurring import schedules
from tasks.scheduling import deadlines
from tasks.steps import registry
from tasks.webhooks import delivery

log = logging.getLogger(__name__)

MEMORY_BYTES = 3 * 2**30
"""A worker whose threads have grown its process beyond this ends after a task, and its supervisor starts another."""
STOP_SECONDS = 7.0
"""A worker that is stopped has given its segments back after this long, and ends, whatever its threads wait for."""
TASK_SECONDS = 5.0
"""A worker of other tasks that gets SIGQUIT waits for them this long before it cancels them."""
IDLE_SECONDS = 0.5
"""Its processes have so long to end themselves then."""
RETRY_SECONDS = 5.0
RETRIES = 20
AGAIN = ("batch.", "post.", "job.validate", "job.finish")
"""Messages of one batch are sent again this often. After that only housekeeping does it, when their leases run out."""


class _Task(Task):  # type: ignore[misc]  # Celery has no types
    """A task that waits while a part of the deployment is away; beat's tasks wait for their next tick."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        try:
            return super().__call__(*args, **kwargs)
        except LeaseLost as error:
            log.warning("%s stops: %s", self.name, error)
            raise Ignore from error
        except UnavailableError as error:
            log.warning("%s waits: %s", self.name, error)
            if self.name.startswith(AGAIN) and self.request.retries < RETRIES:
                raise self.retry(countdown=RETRY_SECONDS, max_retries=RETRIES) from error
            raise Ignore from error


app.task_cls = _Task


@signals.worker_init.connect
def _share(**_: Any) -> None:
    """Load what tasks load at first use, and keep it out of garbage collections: a pool's processes share its pages."""
    configuration = settings.load()
    port().prepare(configuration)
    read_models()
    configure_mappers()
    spans.prepare()
    gc.collect()
    gc.freeze()


@signals.heartbeat_sent.connect
def _touch(**_: Any) -> None:
    """Show health checks that the worker lives. Celery's `inspect ping` would take each a second of CPU."""
    if file := _alive_file():
        Path(file).touch()


_alive_file = functools.cache(lambda: settings.load().alive_file)


@signals.worker_process_init.connect
def _end_with_worker(**_: Any) -> None:
    """End this process of a pool with its worker, also if that is killed: it would wait for messages for ever."""
    kinship.end_with_parent()


@signals.worker_process_shutdown.connect
@signals.worker_shutdown.connect
def _flush_spans(**_: Any) -> None:
    """Send the last spans of a process that ends."""
    spans.flush()


@signals.worker_ready.connect
def _prepare_end(sender: Any, **_: Any) -> None:
    """Let segments in this process's threads end with it, other tasks within a limit."""
    warm, cold = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGQUIT)
    if isinstance(sender.pool, Threads) and queues.BATCHES in app.amqp.queues.consume_from:
        starter = Starter(context())
        threading.Thread(target=starter.run, name="live", daemon=True).start()
        signals.worker_shutting_down.connect(lambda **_: starter.stop(), weak=False)
        signals.worker_shutting_down.connect(_stop)
        signals.task_postrun.connect(_end_if_large)
        # Celery would wait for the threads first, and say that it shuts down only after that.
        signal.signal(signal.SIGQUIT, warm)
        return

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGQUIT, cold)
        threading.Thread(target=_end_tasks, args=[sender.pool], name="end", daemon=True).start()
        cast("Callable[[int, Any], None]", warm)(number, frame)

    # Celery's soft shutdown sleeps for its whole time even if every task ends at once.
    signal.signal(signal.SIGQUIT, end)


def _end_tasks(pool: Any) -> None:
    """Cancel tasks that take long, and end the pool's processes, which may still be starting."""
    deadline = time.monotonic() + TASK_SECONDS
    while state.active_requests and time.monotonic() < deadline:
        time.sleep(0.05)
    if state.active_requests:
        os.kill(os.getpid(), signal.SIGQUIT)
    if isinstance(pool, Threads):
        return
    with contextlib.suppress(AttributeError):  # of a pool that has ended meanwhile
        while True:
            time.sleep(IDLE_SECONDS)
            for process in psutil.Process().children():
                if process.pid in pool.info["processes"]:
                    process.kill()


def _stop(**_: Any) -> None:
    # Ray's handler, which has called Celery's, aborts the process after 3 s by an alarm: segments may need longer.
    signal.alarm(0)
    # Not here, in the handler of a signal: it may have interrupted a thread that holds a lock.
    threading.Thread(target=_stop_segments, name="stop", daemon=True).start()


def _stop_segments() -> None:
    RUNNING.stop()
    time.sleep(STOP_SECONDS)
    segment.leave(context(), "the worker was stopped")


def _end_if_large(**_: Any) -> None:
    """End this worker if it has grown too large; its segments go on elsewhere."""
    size = psutil.Process().memory_info().rss
    if size > MEMORY_BYTES and not RUNNING.ending:
        log.warning("worker has grown; it ends to start again", extra={"bytes": size})
        os.kill(os.getpid(), signal.SIGTERM)


@app.task(name="batch.validate", bind=True)
def validate(task: Task, batch_id: str) -> None:
    advance.validate_next(context(), ("batch", batch_id), holder(task.request.id), lambda: messages.send_again(task))


@app.task(name="batch.advance")
def start_ready(_batch_id: str) -> None:
    advance.advance(context())


@app.task(name="batch.segment", bind=True)
def run_segment(task: Task, segment_id: int, epoch: int) -> None:
    advance.run_segment(context(), segment_id, epoch, holder(task.request.id))


@app.task(name="engine.stop")
def stop_engine(model: str) -> None:
    engine_status.stop(context(), model)


@app.task(name="batch.merge", bind=True)
def merge(task: Task, batch_id: str) -> None:
    advance.finish_next(context(), ("batch", batch_id), holder(task.request.id), lambda: messages.send_again(task))


@app.task(name="batch.finish", bind=True)
def finish(task: Task, batch_id: str, merge: bool = False) -> None:
    if merge:
        advance.finish_next(context(), ("batch", batch_id), holder(task.request.id), lambda: messages.send_again(task))
    else:
        advance.finish(context(), batch_id, holder(task.request.id), merge=False)


def _register_step(name: str) -> None:
    @app.task(name=f"post.{name}", bind=True)
    def run_step(task: Task, batch_id: str, position: int) -> None:
        if not finalize.run_step(context(), batch_id, position, holder(task.request.id)):
            raise Ignore


for _name in (*(step.name for step in registry.STEPS.load()), finalize.UNINSTALLED):
    _register_step(_name)


def _register_periodic(name: str, run: Callable[[AppContext], object]) -> None:
    @app.task(name=name)
    def run_periodic() -> None:
        run(context())


for _name, _run in {
    "housekeeping.tick": housekeeping.tick,
    "housekeeping.deadlines": lambda context: deadlines.tick(context, engine_status.known(context)),
    "housekeeping.metrics": metrics.tick,
    "schedule.tick": lambda context: schedules.run_due(context, now()),
    "housekeeping.purge": lambda context: garbage.purge(context, time.time()),
    "housekeeping.evict": result_cache.evict,
    "housekeeping.budgets": budgets.tick,
    "webhook.ring": delivery.enqueue_due,
}.items():
    _register_periodic(_name, _run)


@app.task(name="housekeeping.collect")
def collect_garbage(interval_seconds: float) -> None:
    garbage.tick(context(), interval_seconds)


@app.task(name="webhook.deliver")
def deliver_to_webhook(delivery_id: str, attempts: int) -> None:
    delivery.deliver(context(), delivery_id, attempts)


port().register_tasks()
