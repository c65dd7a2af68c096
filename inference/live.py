"""Engines for live requests: started if need be, and where they answer."""

import logging
from collections.abc import Callable
from threading import Event
from typing import NamedTuple

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from batchyard.errors import UnavailableError
from batchyard.models import ModelSpec
from inference.answers import Death
from inference.ray.starts import death_reason, start_replicas, was_stopped
from inference.ray_internals import UNPLACED, actor_id, actor_state
from inference.residents.directory import SEEN, model_and_replica, replicas_of
from inference.residents.session import EngineTimeouts

log = logging.getLogger(__name__)

HANGING_SECONDS = 10.0
READY_SECONDS = 2.0
"""A replica that runs says so within this time; one that is starting comes later."""


class ReplicaAddress(NamedTuple):
    """Where a replica answers live requests, and how many it runs at once."""

    name: str
    url: str
    token: str
    capacity: int


class LiveReplicas:
    """The replicas that answer live requests."""

    def __init__(self, timeouts: EngineTimeouts) -> None:
        self._timeouts = timeouts

    def start(self, spec: ModelSpec, stopped: Event, on_death: Callable[[Death], None]) -> list[ReplicaAddress]:
        """Start the model's replicas, and return those that answer live requests, one at least."""
        start_replicas(spec, self._timeouts, stopped, on_death)
        # On a busy machine one that runs may be late to say so: without it nobody would have an address.
        engines = self.running(spec, HANGING_SECONDS)
        if not engines:
            raise UnavailableError(f"no engine of model {spec.name} that answers live requests has said so")
        return engines

    def running(self, spec: ModelSpec, first_seconds: float = 0.0) -> list[ReplicaAddress]:
        """Return the model's replicas that answer live requests. The first may take `first_seconds` more."""
        calls = {
            name: handle.ready.remote(self._timeouts.idle_seconds)
            for name, handle in replicas_of(spec, self._timeouts.request_timeout).items()
            if actor_state(handle) not in UNPLACED
        }
        if calls:
            ray.wait(list(calls.values()), timeout=first_seconds)
        addresses = []
        for name, call in calls.items():
            try:
                engine = ray.get(call, timeout=READY_SECONDS)
            except RayError:  # it is starting, or has just ended
                continue
            if engine is not None and engine.live is not None:
                addresses.append(ReplicaAddress(name, engine.live.url, engine.live.token, engine.capacity))
        return addresses

    def end_if_hanging(self, spec: ModelSpec, name: str) -> Death | None:
        """Kill a replica that does not answer, or whose engine has work and has done none for the request timeout.

        Return its death; None if it works, or is gone.
        """
        handle = replicas_of(spec, self._timeouts.request_timeout).get(name)
        if handle is None or actor_state(handle) != "ALIVE":
            return None
        try:
            quiet = ray.get(handle.quiet.remote(), timeout=HANGING_SECONDS)
            if quiet < self._timeouts.request_timeout:
                return None
            reason = f"the engine answered nothing for {quiet:.0f} seconds and was killed"
        except GetTimeoutError:
            reason = f"the engine's process did not answer for {HANGING_SECONDS:g} seconds and was killed"
        except RayError:  # it has ended
            return None
        ray.kill(handle)
        return _death(name, handle, reason)


def deaths(model: str | None = None) -> list[Death]:
    """Return deaths of engines that this process saw alive, each once."""
    found = []
    for engine, (name, handle) in list(SEEN.items()):
        if model not in (None, model_and_replica(name)[0]) or actor_state(handle) != "DEAD":
            continue
        if SEEN.pop(engine, None) is None:  # another thread reports it
            continue
        try:
            ray.get(handle.quiet.remote(), timeout=READY_SECONDS)
        except RayActorError as error:
            if not was_stopped(error):
                found.append(_death(name, handle, death_reason(error)))
        except RayError as error:
            log.warning("death of an engine not explained: %s", error, extra={"engine": name})
    return found


def _death(name: str, handle: ActorHandle, reason: str) -> Death:
    model, replica = model_and_replica(name)
    return Death(model, actor_id(handle), replica, reason, requests=0, next="starts_again")
