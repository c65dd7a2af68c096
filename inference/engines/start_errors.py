"""The messages of an engine that does not start in the cluster."""

import json

import ray
from ray.exceptions import RayTaskError

from batchyard.errors import EngineStartError
from batchyard.failures.reasons import explained
from batchyard.models import ModelSpec


def start_error(spec: ModelSpec, error: RayTaskError) -> EngineStartError:
    """Return the engine's reason, without Ray's traceback."""
    cause = error.cause
    reason = explained(cause.message if isinstance(cause, EngineStartError) else f"{type(cause).__name__}: {cause}")
    return EngineStartError(f"engine {spec.engine} of model {spec.name} does not start: {reason}")


def fits_no_node(gpus: float) -> bool:
    """True if no node of the cluster has what a replica needs, even without other work."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return not any(node.get("CPU", 0) and node.get("GPU", 0) >= gpus for node in nodes)


def no_place(spec: ModelSpec, gpus: float) -> str:
    """Return the message of an engine without a place: what it needs, and what nodes have."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    total, free = ray.cluster_resources(), ray.available_resources()
    has = ", ".join(f"{total.get(name, 0):g} {name}s ({free.get(name, 0):g} free)" for name in ("GPU", "CPU"))
    most = max((node.get("GPU", 0) for node in nodes), default=0)
    return (
        f"engine {spec.engine} of model {spec.name} has no place in the cluster: a replica needs "
        f"{f'{gpus:g} GPUs' if gpus else 'a CPU'} on one node; the cluster has {len(nodes)} nodes with {has}, and at "
        f"most {most:g} GPUs on one. Add a node with room, or lower num_gpus"
    )


def start_timed_out(spec: ModelSpec, start_timeout: float, waits_for: str = "") -> str:
    """Return the message of a start that took longer than `start_timeout` seconds."""
    if waits_for:
        return (
            f"engine {spec.engine} of model {spec.name} did not start within {start_timeout:g} seconds, and was not "
            f"ready yet: {waits_for}"
        )
    return (
        f"engine {spec.engine} of model {spec.name} did not start within {start_timeout:g} seconds; "
        f"the cluster has {json.dumps(ray.cluster_resources())}, of which free: {json.dumps(ray.available_resources())}"
    )
