"""The Celery application and its tasks: each is one call."""

from __future__ import annotations

import os
import socket
from typing import Any

from celery import Celery, Task, signals
from celery.exceptions import Ignore

from batchyard import logs, settings
from tasks import collect, finish, housekeeping, segment, steps, validation
from tasks.house import house

app = Celery("batchyard")
app.config_from_object("celeryconfig")


@signals.setup_logging.connect
def _configure_logging(**_: Any) -> None:
    logs.configure(settings.load().log_level)


def _holder(task: Task) -> str:
    """Who holds a lease: the process and the task, as a person can find them."""
    return f"{socket.gethostname()}/{os.getpid()}/{task.request.id}"


@app.task(name="batch.validate", bind=True)
def validate(task: Task, batch_id: str) -> None:
    validation.run(house(), batch_id, _holder(task))


@app.task(name="batch.segment", bind=True)
def run_segment(task: Task, segment_id: int, epoch: int) -> None:
    segment.run(house(), segment_id, epoch, _holder(task))


@app.task(name="batch.merge", bind=True)
def merge(task: Task, batch_id: str) -> None:
    if not finish.merge(house(), batch_id, _holder(task)):
        raise Ignore  # somebody else is finishing this batch: end this chain


@app.task(name="batch.finish", bind=True)
def end(task: Task, batch_id: str) -> None:
    finish.end(house(), batch_id, _holder(task))


def _step(name: str) -> None:
    @app.task(name=f"post.{name}", bind=True)
    def run_step(task: Task, batch_id: str, position: int) -> None:
        if not finish.run_step(house(), batch_id, position, _holder(task)):
            raise Ignore


for _name in steps.REGISTRY:
    _step(_name)


@app.task(name="housekeeping.tick")
def tick() -> None:
    housekeeping.tick(house())


@app.task(name="housekeeping.collect")
def collect_garbage() -> None:
    collect.tick(house())
