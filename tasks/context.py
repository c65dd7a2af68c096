"""The application context of a process: settings, models, database, artifacts and Redis."""

import functools
import threading
from dataclasses import dataclass

import redis

from batchyard import settings
from batchyard.models import ModelSpec
from batchyard.settings import Settings
from inference import catalog
from store.artifacts import Artifacts
from store.database import Database

REDIS_SECONDS = 2.0
"""Longest wait for a reply of Redis. Work goes on without Redis, so nothing waits for a server that hangs."""


@dataclass(frozen=True)
class AppContext:
    """The parts that tasks and routes work with."""

    settings: Settings
    models: dict[str, ModelSpec]
    database: Database
    artifacts: Artifacts
    redis: redis.Redis

    def for_clients(self, message: str) -> str:
        """Return a message without where the artifact store and the database are, which only the log says."""
        for url in (self.artifacts.url, self.database.url.render_as_string()):
            message = message.replace(f" {url}", "")
        return message

    def join_ray(self, stopped: threading.Event) -> None:
        """Join the Ray cluster of the settings, as `inference.ray.cluster.connect`, which only some processes load."""
        from inference.ray import cluster

        cluster.connect(self.settings.ray_address, stopped, ship_code=self.settings.ray_ship_code)


def served_models(configuration: Settings) -> dict[str, ModelSpec]:
    """Return the models of the deployment's models.toml. Raises ConfigurationError for what cannot be used."""
    return catalog.load(configuration.models, allow_simulated=configuration.allow_simulated)


def build(configuration: Settings) -> AppContext:
    """Build a context from the settings. Raises ConfigurationError for what cannot be used."""
    return AppContext(
        settings=configuration,
        models=served_models(configuration),
        database=Database(configuration.database, max_stored_bytes=configuration.max_stored_bytes),
        artifacts=Artifacts(configuration.artifacts),
        redis=redis.Redis.from_url(configuration.redis_url, decode_responses=True, socket_timeout=REDIS_SECONDS),
    )


_own = functools.cache(lambda: build(settings.load()))
_BUILDING = threading.Lock()


def context() -> AppContext:
    """Return this process's context. Not to be called before a worker's pool has started its processes."""
    with _BUILDING:  # a second one of another thread would have its own turn to write, which SQLite has one of
        return _own()
