"""The application context of a process: settings, models, database, artifacts and Redis."""

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import redis

from batchyard import models, settings
from batchyard.models import ModelSpec
from batchyard.settings import Settings
from inference import catalog
from store.artifacts import Artifacts
from store.database import Database
from tasks.models_in_force import ModelsInForce

REDIS_SECONDS = 2.0
"""Longest wait for a reply of Redis. Work goes on without Redis, so nothing waits for a server that hangs."""


@dataclass(frozen=True)
class AppContext:
    """The parts that tasks and routes work with.

    `models` stay as they are: one task or request sees the same ones throughout. `fresh` brings them up to date.
    `draining`: removed models whose batches still run.
    """

    settings: Settings
    models: dict[str, ModelSpec]
    database: Database
    artifacts: Artifacts
    redis: redis.Redis
    draining: Mapping[str, ModelSpec] = field(default_factory=dict)
    source: ModelsInForce | None = None

    def fresh(self, *, at_once: bool = False) -> Self:
        """Return the context with the models that are in force now. `at_once`: as `ModelsInForce.now`."""
        if self.source is None:
            return self
        in_force = self.source.now(at_once=at_once)
        if in_force is self.source.at_start:  # nothing has changed
            return self
        return replace(self, models=in_force.models, draining=in_force.draining)

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


def build(configuration: Settings, document: Mapping[str, Any] | None = None) -> AppContext:
    """Build a context. `document`: models.toml as read before. Raises ConfigurationError for what cannot be used."""
    path = configuration.models
    document = document or models.parsed(path)  # before there is a database: a command in the wrong place makes none
    database = Database(configuration.database, max_stored_bytes=configuration.max_stored_bytes)
    source = ModelsInForce(configuration, database, document)
    return AppContext(
        settings=configuration,
        models=source.at_start.models,
        database=database,
        artifacts=Artifacts(configuration.artifacts),
        redis=redis.Redis.from_url(configuration.redis_url, decode_responses=True, socket_timeout=REDIS_SECONDS),
        source=source,
    )


read_models = functools.cache(lambda: models.parsed(settings.load().models))
"""A worker reads models.toml before its pool begins: a process that begins later serves what the others serve."""
_own = functools.cache(lambda: build(settings.load(), read_models()))
_BUILDING = threading.Lock()


def context() -> AppContext:
    """Return this process's context with the models in force now.

    Not to be called before a worker's pool has started its processes.
    """
    with _BUILDING:  # a second one of another thread would have its own turn to write, which SQLite has one of
        own = _own()
    return own.fresh()
