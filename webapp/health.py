"""/healthz: this process runs. /readyz: a batch can run."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Literal

import redis
from celery import current_app
from flask import Blueprint
from kombu.exceptions import OperationalError
from pydantic import BaseModel, Field

from batchyard.errors import UnavailableError
from tasks.context import AppContext
from webapp.document import operation
from webapp.requests import current_context

routes = Blueprint("health", __name__)

WAIT_SECONDS = 1.0


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    status: Literal["ready", "not ready"]
    parts: dict[str, str] = Field(description="what each part says: `ok`, or what is wrong with it")


@routes.get("/healthz")
@operation(Health, public=True)
def healthz() -> Health:
    """Whether this process is up."""
    return Health()


@routes.get("/readyz")
@operation(Readiness, public=True, others={503: Readiness})
def readyz() -> tuple[dict[str, Any], int]:
    """Whether a batch can run: the store, the broker, a worker and Ray answer. Says of each what it said."""
    context = current_context()
    parts = {name: _run(check, context) for name, check in CHECKS.items()}
    ready = all(state == "ok" for state in parts.values())
    answer = Readiness(status="ready" if ready else "not ready", parts=parts)
    return answer.model_dump(), 200 if ready else 503


def _run(check: Callable[[AppContext], None], context: AppContext) -> str:
    try:
        check(context)
    except (UnavailableError, redis.RedisError, OperationalError, OSError) as error:
        return str(error) or type(error).__name__
    return "ok"


def _broker(context: AppContext) -> None:
    context.redis.ping()


def _worker(context: AppContext) -> None:
    context.redis.ping()  # the ping below would wait for a broker that is down
    # The webhook worker runs no batch (batchyard/local/programs.py).
    if not current_app.control.ping(timeout=WAIT_SECONDS, limit=1, pattern="(?!webhooks)", matcher="pcre"):
        raise UnavailableError("no worker answers")


def _ray(context: AppContext) -> None:
    host, _, port = context.settings.ray_address.removeprefix("ray://").rpartition(":")
    if port.isdigit():  # only the worker can resolve `auto`
        socket.create_connection((host, int(port)), timeout=WAIT_SECONDS).close()


CHECKS: dict[str, Callable[[AppContext], None]] = {
    "database": lambda context: context.database.ping(),
    "artifacts": lambda context: context.artifacts.ping(),
    "broker": _broker,
    "worker": _worker,
    "ray": _ray,
}
