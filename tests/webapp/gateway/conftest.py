"""Fixtures of the gateway's tests: its context on a real database and a real broker, an engine, and the gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from batchyard.endpoints.catalog import CHAT, EMBEDDINGS, ENDPOINTS, MESSAGES, RESPONSES
from batchyard.models import LiveSettings, ModelSpec, Tariff
from batchyard.settings import Settings
from store import keys
from store.artifacts import Artifacts
from store.database import Database
from tasks import context as contexts
from tasks.context import AppContext
from tests.support.gateways import LiveEngine, LoopThread, RunningGateway, loop_thread, publish
from webapp.gateway import accounting, callers

MODELS = {
    "echo": ModelSpec(
        name="echo",
        engine="echo",
        endpoints=(CHAT.path, MESSAGES.path, EMBEDDINGS.path, RESPONSES.path),
    ),
    "priced": ModelSpec(
        name="priced", engine="echo", endpoints=tuple(ENDPOINTS), price=Tariff(currency="EUR", input=1, output=2)
    ),
    "paced": ModelSpec(name="paced", engine="echo", engine_args={"ms_per_token": 20}),
    "offline": ModelSpec(name="offline", engine="echo", live=LiveSettings(mode="off")),
    "absent": ModelSpec(name="absent", engine="echo"),
}


@pytest.fixture
def start_seconds() -> int:
    """Seconds that a live request waits for its engine; tests that wait for none to come have fewer."""
    return 60


@pytest.fixture
def settings(broker: str, start_seconds: int) -> Settings:
    return Settings(redis_url=broker, allow_simulated=True, live_start_seconds=start_seconds)


@pytest.fixture
def live_context(settings: Settings, database: Database, artifacts: Artifacts) -> Iterator[AppContext]:
    built = contexts.redis.Redis.from_url(settings.redis_url, decode_responses=True, socket_timeout=60)
    built.flushall()
    yield AppContext(settings, MODELS, database, artifacts, built)
    built.close()


@pytest.fixture
def key(database: Database) -> str:
    """A key of project `default`."""
    with database.write() as session:
        return keys.create(session, "default", label="alice").key


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    with loop_thread() as thread:
        yield thread


@pytest.fixture
def engines(live_context: AppContext, thread: LoopThread) -> Iterator[dict[str, LiveEngine]]:
    """An engine for each model but `absent` and `offline`."""
    running = {
        name: LiveEngine(thread, spec, name=f"engine-{name}") for name, spec in MODELS.items() if name[0] in "ep"
    }
    for name, engine in running.items():
        publish(live_context, name, engine)
    yield running
    for engine in running.values():
        engine.stop()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gateways write usage, and look for changes of keys, every 50 ms."""
    monkeypatch.setattr(accounting, "WRITE_SECONDS", 0.05)
    monkeypatch.setattr(callers, "REFRESH_SECONDS", 0.05)


@pytest.fixture
def gateway(live_context: AppContext, thread: LoopThread, engines: dict[str, LiveEngine]) -> Iterator[RunningGateway]:
    running = RunningGateway(thread, live_context)
    yield running
    running.stop()


@pytest.fixture
def http(gateway: RunningGateway, key: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=60) as client:
        yield client


Send = Callable[..., httpx.Response]


@pytest.fixture
def send(http: httpx.Client) -> Send:
    """Sends a chat, with these parameters."""

    def send(content: str = "three wagons", **parameters: Any) -> httpx.Response:
        body = {"model": "echo", "messages": [{"role": "user", "content": content}], **parameters}
        return http.post("/v1/chat/completions", json=body)

    return send
