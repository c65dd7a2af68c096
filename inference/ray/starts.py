"""Starts of replicas: their outcomes, when to try again, and when to give up."""

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from threading import Event

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from batchyard.backoff import Backoff
from batchyard.errors import EngineDied, EngineStartError, Stopped, UnavailableError
from batchyard.failures.endings import actor_death
from batchyard.failures.reasons import explained
from batchyard.models import ModelSpec
from inference.answers import Death
from inference.engines.start_errors import fits_no_node, no_place, start_error, start_timed_out
from inference.ray_internals import actor_id
from inference.residents import gpu_eviction
from inference.residents.actor import StartedEngine, get_or_create_engine, gpus
from inference.residents.directory import are_unplaced
from inference.residents.session import EngineTimeouts
from inference.waits import wait

BACKOFF = Backoff(first=0.2, longest=10.0)
"""Between two starts of a replica."""
ATTEMPTS = 5
LOOK_SECONDS = 1.0
"""Between two looks whether replicas that do not start still can."""
UNPLACED_SECONDS = 30.0
"""A model all of whose replicas wait for a node for this long has no place in the cluster."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartOutcome:
    """What came of one start. All None: the actor was being stopped, and the next one may start."""

    engine: StartedEngine | None = None  # the engine runs
    failure: EngineStartError | UnavailableError | None = None  # why it cannot start, or why its node does not answer
    death: str | None = None  # why its process died. The actor may be the one before, whose name is not free yet.


def outcome(spec: ModelSpec, handle: ActorHandle, result: StartedEngine | RayError | None) -> StartOutcome:
    """Return what came of a start by `EngineActor.ready`'s result. Kills an actor that cannot start."""
    if isinstance(result, RayTaskError):
        ray.kill(handle)
        if isinstance(result.cause, EngineDied):
            return StartOutcome(death=result.cause.message)
        failure = start_error(spec, result)
        log.warning("replica cannot start: %s", failure, extra={"model": spec.name})
        return StartOutcome(failure=failure)
    if isinstance(result, ActorUnavailableError):
        log.info("engine is out of reach: %s", result, extra={"model": spec.name})
        return StartOutcome(failure=UnavailableError(f"the Ray node of model {spec.name} does not answer: {result}"))
    if isinstance(result, RayActorError):
        log.info("engine ended at its start: %s", result, extra={"model": spec.name})
        return StartOutcome(death=None if was_stopped(result) else death_reason(result))
    if isinstance(result, RayError):
        raise result
    return StartOutcome(engine=result)


def hopeless(
    spec: ModelSpec, handles: Collection[ActorHandle], seconds: float, timeout: float
) -> EngineStartError | None:
    """Return why replicas that start since `seconds` are given up, and kill them; None if they may come."""
    error = None
    # A process that is placed may take long to start on a busy node; one that fits on none is told from it.
    may_be_unplaced = seconds >= min(gpu_eviction.PLACING_SECONDS, UNPLACED_SECONDS) and are_unplaced(handles)
    if may_be_unplaced and (seconds >= UNPLACED_SECONDS or fits_no_node(gpus(spec))):
        error = EngineStartError(no_place(spec, gpus(spec)))
    elif seconds >= timeout:
        error = EngineStartError(explained(start_timed_out(spec, timeout, _waits_for(handles))))
    if error is not None:
        for handle in handles:
            ray.kill(handle)
    return error


def _waits_for(handles: Collection[ActorHandle]) -> str:
    """Return what a start waits for, if one of the engines says so at once."""
    answers = [handle.waits_for.remote() for handle in handles]
    ready, _ = ray.wait(answers, num_returns=len(answers), timeout=LOOK_SECONDS) if answers else ([], [])
    for answer in ready:
        with suppress(RayError):
            if reason := ray.get(answer):
                return str(reason)
    return ""


def start_replicas(
    spec: ModelSpec, timeouts: EngineTimeouts, stopped: Event, on_death: Callable[[Death], None]
) -> StartedEngine:
    """Start every replica that is not running, and return the first one that runs; callers take in the others."""
    deaths: dict[str, Death] = {}
    for failures in range(ATTEMPTS):
        if failures and stopped.wait(BACKOFF.seconds(failures)):
            raise Stopped
        began = time.monotonic()
        handles = [get_or_create_engine(spec, timeouts.request_timeout, replica) for replica in range(spec.replicas)]
        starts = {handle.ready.remote(timeouts.idle_seconds): handle for handle in handles}
        done, missing = wait(list(starts), stopped, timeout=gpu_eviction.PLACING_SECONDS)
        if done:
            # The others get as long again, so that a cold start usually has all of them.
            _, missing = wait(list(starts), stopped, num_returns=len(starts), timeout=time.monotonic() - began)
        if missing and gpus(spec):
            gpu_eviction.evict_idle(spec, handles, stopped)
        before = set(deaths)  # a dead actor keeps its name until the cluster has noted its death
        engine = _first(spec, starts, timeouts.start_timeout, stopped, deaths)
        for dead in deaths.keys() - before:
            on_death(deaths[dead])
        if engine is not None:
            return engine
    reason = "".join(f": {last.reason}" for last in list(deaths.values())[-1:])
    raise EngineStartError(f"engine {spec.engine} of model {spec.name} ended each time it was started{reason}")


def _first(
    spec: ModelSpec,
    starts: dict[ray.ObjectRef, ActorHandle],
    timeout: float,
    stopped: Event,
    deaths: dict[str, Death],
) -> StartedEngine | None:
    """Return the first replica that runs, or None. Add deaths by the engine's id. Raises: as `start_replicas`."""
    failure: EngineStartError | UnavailableError | None = None
    began = time.monotonic()
    replicas = {actor_id(handle): replica for replica, handle in enumerate(starts.values())}
    while starts:
        done, _ = wait(list(starts), stopped, timeout=min(timeout, LOOK_SECONDS))
        if not done:
            error = hopeless(spec, starts.values(), time.monotonic() - began, timeout)
            if error is not None:
                raise failure or error
            continue
        handle = starts.pop(done[0])
        try:
            result: StartedEngine | RayError | None = ray.get(done[0])
        except RayError as error:
            result = error
        start = outcome(spec, handle, result)
        if start.engine is not None:
            return start.engine
        if start.death is not None:
            engine = actor_id(handle)
            death = Death(spec.name, engine, replicas[engine], start.death, 0, "starts_again")
            deaths.setdefault(engine, death)
        if failure is None or isinstance(start.failure, EngineStartError):
            failure = start.failure or failure
    if failure is not None:
        raise failure
    return None


def was_stopped(error: RayActorError) -> bool:
    """True if the actor did not die: it had no work, or made room, and was stopped."""
    return "ray.kill" in str(error)


def death_reason(error: RayActorError) -> str:
    """Return why an actor died, on one line, with the remedy."""
    return explained(actor_death(str(error)))
