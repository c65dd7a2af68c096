"""The directory of engine actors in the cluster: listed and stopped by name."""

import contextlib
import logging
import time
from collections.abc import Collection

import ray
from pydantic import ValidationError
from ray.actor import ActorHandle

from batchyard import __version__
from batchyard.models import ModelSpec
from inference.ray_internals import UNPLACED, actor_id, actor_state
from inference.residents.status import ResidentStatus

NAMESPACE = "batchyard"
PREFIX = "engine:"
IDLE_SECONDS = 2.0
"""An engine without work for this long may be evicted. The gap between two segments of a batch is shorter."""
SEEN: dict[str, tuple[str, ActorHandle]] = {}
"""Names and handles, by actor id, of the engines that this process has seen alive: see inference.live.deaths."""

log = logging.getLogger(__name__)


def actor_name(spec: ModelSpec, request_timeout: float, replica: int) -> str:
    """Return the actor's name, which holds everything that its answers depend on."""
    return f"{PREFIX}{spec.name}:{__version__}:{spec.config_sha256[:16]}:t{request_timeout:g}:{replica}"


def model_and_replica(name: str) -> tuple[str, int]:
    """Return the model of an actor by its name, and the replica's index."""
    model, _version, _config, _timeout, replica = name.removeprefix(PREFIX).rsplit(":", 4)
    return model, int(replica)


def are_unplaced(handles: Collection[ActorHandle]) -> bool:
    """True if there are any of these actors, and each waits for a node with room."""
    return bool(handles) and all(actor_state(handle) in UNPLACED for handle in handles)


def engine_actors() -> dict[str, ActorHandle]:
    """Return the engine actors alive in the cluster, by name."""
    handles = {}
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == NAMESPACE and entry["name"].startswith(PREFIX):
            with contextlib.suppress(ValueError):  # ended between the two calls
                handles[entry["name"]] = ray.get_actor(entry["name"], namespace=NAMESPACE)
    SEEN.update({actor_id(handle): (name, handle) for name, handle in handles.items()})
    return handles


def replicas_of(spec: ModelSpec, request_timeout: float) -> dict[str, ActorHandle]:
    """Return the actors of the model's replicas that are alive, by name."""
    alive, names = engine_actors(), (actor_name(spec, request_timeout, replica) for replica in range(spec.replicas))
    return {name: alive[name] for name in names if name in alive}


def states(timeout: float = 5.0) -> dict[str, ResidentStatus]:
    """Return the status of each placed actor by name. One that starts does not answer in time."""
    handles = {name: handle for name, handle in engine_actors().items() if actor_state(handle) not in UNPLACED}
    references = {name: handle.state.remote() for name, handle in handles.items()}
    if references:
        ray.wait(list(references.values()), num_returns=len(references), timeout=timeout)
    now = time.time()  # of this machine's clock, not of theirs
    states: dict[str, ResidentStatus] = {}
    for name, reference in references.items():
        try:
            states[name] = ResidentStatus.model_validate({**ray.get(reference, timeout=0.1), "seen_at": now})
        except ray.exceptions.GetTimeoutError:
            states[name] = ResidentStatus(name=name, model=model_and_replica(name)[0], state="starting", seen_at=now)
        except ray.exceptions.RayActorError:
            log.info("engine ended while it was listed", extra={"engine": name})
        except (ray.exceptions.RayTaskError, ValidationError) as error:
            log.warning("status of an engine not read: %s", error, extra={"engine": name})
    return states


def stop_all(model: str | None = None, timeout: float = 30.0) -> list[str]:
    """Stop all engine actors, or a model's, with their requests. Return their names."""
    actors = engine_actors().items()
    handles = {name: handle for name, handle in actors if model in (None, model_and_replica(name)[0])}
    references = [handle.stop.remote() for handle in handles.values()]
    if references:
        ray.wait(references, num_returns=len(references), timeout=timeout)
    for handle in handles.values():
        ray.kill(handle)
    return sorted(handles)


def evict(name: str, timeout: float = 30.0) -> bool:
    """Stop this actor unless it has work or is starting. Return True if it is gone."""
    handle = engine_actors().get(name)
    if handle is None:
        return True
    try:
        stopped = bool(ray.get(handle.stop_if_idle.remote(), timeout=timeout))
    except ray.exceptions.GetTimeoutError:
        return False
    except ray.exceptions.RayActorError:
        return True
    if stopped:
        ray.kill(handle)
    return stopped
