"""Ray's private and undocumented API, without Ray Data's (`ray_data_internals`) and the start of a local head.

Ray is pinned to one version in pyproject.toml. tests/inference/test_private_apis.py checks every private name.
"""

from ray._common.usage.usage_lib import get_cluster_metadata
from ray._private.state import actors
from ray._private.utils import check_version_info
from ray._private.worker import global_worker
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.actor import ActorHandle
from ray.job_config import JobConfig

UNPLACED = ("DEPENDENCIES_UNREADY", "PENDING_CREATION")
"""States of an actor that waits for resources."""


class OwnPath(JobConfig):  # type: ignore[misc]  # Ray has no types
    """The settings of a driver whose folder is not in the path of Ray's workers.

    Ray puts it before all others, so that workers would import a user's inference.py for ours. It leaves it out for a
    driver whose workers get a folder of their own, which none of these do.
    """

    def _runtime_env_has_working_dir(self) -> bool:
        return True


def version_mismatch(address: str) -> str | None:
    """Say which versions of Python and Ray the cluster at `address` (`host:port`) has, unless a driver may join it.

    Ray decides, as it would in `ray.init`: Python's patch level counts unless RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL
    is `minor`. This needs no node on this machine.
    """
    metadata = get_cluster_metadata(GcsClient(address=address))
    try:
        if metadata:
            check_version_info(metadata, "this machine")
    except RuntimeError:
        return f"Python {metadata['python_version']} and Ray {metadata['ray_version']}"
    return None


def is_same_cluster(address: str) -> bool:
    """True if the cluster at `address` (`host:port`) is the one this process is a driver of.

    Ray has no public call for a cluster's id. A restarted cluster has the old address and another id.
    """
    return bool(GcsClient(address=address).cluster_id == global_worker.gcs_client.cluster_id)


def actor_state(handle: ActorHandle) -> str:
    """The state of an actor, such as `PENDING_CREATION` or `ALIVE`; `DEAD` if the cluster does not know it.

    Ray's public call for it, `ray.util.state.get_actor`, needs the dashboard, which the clusters here may lack.
    """
    return str(actors(actor_id(handle)).get("State", "DEAD"))


def actor_id(handle: ActorHandle) -> str:
    """The id of an actor, which no other has, also not the next one of its name."""
    return str(handle._actor_id.hex())
