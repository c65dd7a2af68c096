"""/healthz: this process runs. /readyz: a batch can run, worked out every READY_SECONDS at most."""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import celery
import redis
from flask import Blueprint, Flask, current_app
from kombu.exceptions import OperationalError

from batchyard.errors import UnavailableError
from tasks.context import AppContext
from webapp.document import operation
from webapp.requests import current_context
from webapp.wire.health import Health, Readiness, Version

routes = Blueprint("health", __name__)

WAIT_SECONDS = 1.0
READY_SECONDS = 2.0
NOT_READY_SECONDS = 0.5
# The check of the artifact store writes, and pays for a flush or a request.
WRITTEN_SECONDS = 10.0


@dataclass
class _State:
    """What each part said last, and when it was asked, in monotonic seconds."""

    parts: dict[str, str] = field(default_factory=dict)
    asked_at: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self, context: AppContext) -> None:
        """Ask the parts whose state is old, unless another thread does."""
        # The first caller of all has nothing to show yet. Nobody else waits for a part that hangs.
        if self.lock.acquire(blocking=not self.parts):
            try:
                self.parts = {name: self._ask(name, check, context) for name, check in CHECKS.items()}
            finally:
                self.lock.release()

    def _ask(self, name: str, check: Callable[[AppContext], object], context: AppContext) -> str:
        seconds = WRITTEN_SECONDS if name == "artifacts" else READY_SECONDS
        state, age = self.parts.get(name), time.monotonic() - self.asked_at.get(name, 0.0)
        if state is not None and age < (seconds if state == "ok" else NOT_READY_SECONDS):
            return state
        try:
            check(context)
            state = "ok"
        except (UnavailableError, redis.RedisError, OperationalError, OSError) as error:
            state = context.for_clients(str(error)) or type(error).__name__
        self.asked_at[name] = time.monotonic()
        return state


def register(app: Flask) -> None:
    app.extensions["readiness"] = _State()


@routes.get("/healthz")
@operation(Health, public=True)
def healthz() -> Health:
    """Whether this process is up, and its version."""
    return Health()


@routes.get("/health")
@operation(Health, public=True)
def health() -> Health:
    """The same at the path where clients of `vllm serve` look for it."""
    return Health()


@routes.get("/version")
@operation(Version, public=True)
def version() -> Version:
    """The version of this server."""
    return Version()


@routes.get("/readyz")
@operation(Readiness, public=True, others={503: Readiness})
def readyz() -> tuple[dict[str, Any], int]:
    """Whether a batch can run: the store, the broker, both workers and Ray answer. Says of each what it said."""
    state: _State = current_app.extensions["readiness"]
    state.refresh(current_context())
    ready = all(part == "ok" for part in state.parts.values())
    answer = Readiness(status="ready" if ready else "not ready", parts=state.parts)
    return answer.model_dump(), 200 if ready else 503


def _worker(pattern: str, context: AppContext) -> None:
    """Ping the workers whose Celery nodes have such names (batchyard/local/services.py). Raises UnavailableError."""
    context.redis.ping()  # the ping below would wait for a broker that is down
    if not celery.current_app.control.ping(timeout=WAIT_SECONDS, limit=1, pattern=pattern, matcher="pcre"):
        raise UnavailableError("none answers")


def _ray(context: AppContext) -> None:
    host, _, port = context.settings.ray_address.removeprefix("ray://").rpartition(":")
    if port.isdigit():  # only the worker can resolve `auto`
        socket.create_connection((host.strip("[]"), int(port)), timeout=WAIT_SECONDS).close()


CHECKS: dict[str, Callable[[AppContext], object]] = {
    "database": lambda context: context.database.ping(),
    "artifacts": lambda context: context.artifacts.ping(),
    "broker": lambda context: context.redis.ping(),
    "worker": partial(_worker, "(?!webhooks|housekeeper)"),
    "housekeeper": partial(_worker, "housekeeper"),
    "ray": _ray,
}
