"""The Celery application without its tasks: all that beat and Flower need. `tasks.app` adds them for workers."""

from __future__ import annotations

from typing import Any

from celery import Celery, signals

from batchyard import logs, settings

app = Celery("batchyard")
app.config_from_object("celeryconfig")


@signals.setup_logging.connect
def _configure_logging(**_: Any) -> None:
    logs.configure(settings.load().log_level)
