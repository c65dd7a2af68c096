"""The engines that answer live requests, as the gateway knows them: which there are, which one gets a request."""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import redis

from batchyard.errors import UnavailableError
from batchyard.models import ModelSpec
from tasks.context import AppContext
from tasks.live import addresses, demand
from tasks.live.addresses import EngineAddress

LOOK_SECONDS = 0.1
"""Between two looks for an engine that is starting."""
WANT_SECONDS = 1.0
"""How often a model without an engine is said to be wanted."""
RENEW_SECONDS = 5.0
"""How often a model with live requests is said to be wanted, and its replicas are read again."""

log = logging.getLogger(__name__)


@dataclass
class LiveReplica:
    """A replica that answers live requests, how many this gateway has there, and how often it was silent in a row."""

    address: EngineAddress
    in_flight: int = 0
    silences: int = 0


@dataclass
class _LiveModel:
    """What is known of a model's replicas: those with configuration `spec`; engines of another get no new request.

    `gone`: by name and URL of a replica that did not answer, when it had been published (EngineAddress.at). If a worker
    publishes it again, it runs, and was only late.
    """

    spec: ModelSpec
    replicas: dict[str, LiveReplica] = field(default_factory=dict)
    gone: dict[tuple[str, str], float] = field(default_factory=dict)
    renewed_at: float = -math.inf
    wanted_at: float = -math.inf


class NoEngine(UnavailableError):
    """No engine answers live requests of the model yet, or none can; after `retry_after` seconds that may differ."""

    def __init__(self, message: str, *, code: str, retry_after: float) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class LiveEngines:
    """The replicas of each model. What Redis last said of them stands while it is away."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._models: dict[str, _LiveModel] = {}
        self._renewing: dict[str, asyncio.Task[str | None]] = {}

    async def replica(self, spec: ModelSpec, affinity: str | None, avoid: Iterable[str] = ()) -> LiveReplica:
        """Return a replica for a request; wait for the model's engine if none runs.

        Requests with the same `affinity` go to the same replica, as long as that has places. `avoid` names replicas
        that have failed this request. Raises NoEngine: none runs within BATCHYARD_LIVE_START_SECONDS, or none can
        start.
        """
        deadline = time.monotonic() + self._context.settings.live_start_seconds
        model = spec.name
        known = self._models.setdefault(model, _LiveModel(spec))
        if known.spec is not spec:
            if known.spec.config_sha256 != spec.config_sha256:
                known.replicas, known.renewed_at, known.wanted_at = {}, -math.inf, -math.inf
            known.spec = spec
        while True:
            if time.monotonic() - known.renewed_at >= RENEW_SECONDS or not known.replicas:
                renewing = self._renewing.get(model)
                if renewing is None or renewing.done():  # once at a time
                    renewing = self._renewing[model] = asyncio.create_task(self._renewed(model))
                if not known.replicas:
                    failure = await asyncio.shield(renewing)
                    if failure is not None and not known.replicas:
                        message = f"The engine of model {model} does not start: {failure}"
                        raise NoEngine(message, code="engine_failed", retry_after=5)
            usable = [replica for name, replica in known.replicas.items() if name not in set(avoid)]
            if usable or known.replicas:
                return _chosen(usable or list(known.replicas.values()), affinity)
            if time.monotonic() >= deadline:
                seconds = self._context.settings.live_start_seconds
                message = f"The engine of model {model} is starting and was not ready within {seconds:g} s; try again."
                raise NoEngine(message, code="engine_starting", retry_after=10)
            await asyncio.sleep(LOOK_SECONDS)

    def lose(self, model: str, replica: LiveReplica) -> None:
        """Forget a replica that does not answer."""
        known = self._models[model]
        if known.replicas.get(replica.address.name) is replica:
            del known.replicas[replica.address.name]
        known.gone[replica.address.name, replica.address.url] = replica.address.at
        known.renewed_at = -math.inf

    def busy(self) -> list[tuple[str, LiveReplica]]:
        """Return the replicas that have requests of this gateway, by model."""
        all_ = [(model, replica) for model, known in self._models.items() for replica in known.replicas.values()]
        return [(model, replica) for model, replica in all_ if replica.in_flight]

    async def suspect(self, model: str, replica: LiveReplica) -> None:
        """Say that a replica seems to hang; a worker ends it if so."""
        try:
            await asyncio.to_thread(demand.suspect, self._context, model, replica.address.name)
        except redis.RedisError as error:
            log.warning("engine that may hang not told: %s", error, extra={"model": model})

    async def _renewed(self, model: str) -> str | None:
        """Say that a model is wanted, and read its replicas. Return why no engine starts; None if one runs, or may."""
        known = self._models[model]
        try:
            if time.monotonic() - known.wanted_at >= (RENEW_SECONDS if known.replicas else WANT_SECONDS):
                known.wanted_at = time.monotonic()
                await asyncio.to_thread(demand.want, self._context, model)
            published, failure = await asyncio.to_thread(addresses.read, self._context, model)
        except redis.RedisError as error:
            log.warning("engines for live requests not read: %s", error)
            return None
        now = time.monotonic()
        places = {(one.name, one.url): one for one in published if one.is_of(known.spec)}
        if places or known.replicas:
            known.renewed_at = now
        known.gone = {place: at for place, at in known.gone.items() if place in places}
        replicas: dict[str, LiveReplica] = {}
        for place, one in places.items():
            if one.at > known.gone.get(place, -math.inf):
                replica = known.replicas.get(one.name)
                if replica is None or replica.address.url != one.url:
                    replica = LiveReplica(one)
                replica.address = one
                replicas[one.name] = replica
        known.replicas = replicas
        return failure


def _chosen(replicas: list[LiveReplica], affinity: str | None) -> LiveReplica:
    """Return the replica with the least load; of those with places the one that the affinity prefers (rendezvous)."""
    if affinity is not None:
        preferred = max(replicas, key=lambda one: hashlib.sha256(f"{affinity}\0{one.address.name}".encode()).digest())
        if preferred.in_flight < preferred.address.capacity:
            return preferred
    return min(replicas, key=lambda one: one.in_flight / max(1, one.address.capacity))
