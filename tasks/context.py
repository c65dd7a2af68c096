"""What a worker process works with: settings, models, database, artifacts and Redis, made once when first needed."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import redis

from batchyard import models, settings
from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec
from batchyard.settings import Settings
from inference.engines import registry
from store.artifacts import Artifacts
from store.database import Database

# Nothing that is asked of Redis takes long, and nothing waits for a server that hangs: work goes on without it.
REDIS_SECONDS = 2.0


@dataclass(frozen=True)
class AppContext:
    """The parts that tasks and routes are handed."""

    settings: Settings
    models: dict[str, ModelSpec]
    database: Database
    artifacts: Artifacts
    redis: redis.Redis


def served_models(configuration: Settings) -> dict[str, ModelSpec]:
    """The models of the deployment's models.toml. Raises ConfigurationError, also for unusable engine_args."""
    served = models.load(configuration.models, allow_simulated=configuration.allow_simulated)
    try:
        for spec in served.values():
            registry.check_arguments(spec)
    except ConfigurationError as error:
        raise ConfigurationError(f"{configuration.models}: {error.message}") from error
    return served


def build(configuration: Settings) -> AppContext:
    """A context for the settings. Raises ConfigurationError for what cannot be used."""
    return AppContext(
        settings=configuration,
        models=served_models(configuration),
        database=Database(configuration.database),
        artifacts=Artifacts(configuration.artifacts),
        redis=redis.Redis.from_url(configuration.redis_url, decode_responses=True, socket_timeout=REDIS_SECONDS),
    )


@functools.cache
def context() -> AppContext:
    """This process's context. Never called before a worker's pool has started its processes."""
    return build(settings.load())
