"""The connection of this process to the Ray cluster, opened on first use."""

from __future__ import annotations

import logging
import os
import socket

import ray
from ray.exceptions import RayError

from batchyard.errors import UnavailableError
from inference.ray_internals import is_same_cluster
from inference.residents.directory import NAMESPACE

log = logging.getLogger(__name__)


def connect(address: str) -> None:
    """Connect to the cluster at `address` (`host:port`, or `auto`) as a driver; replace a lost connection.

    Call it in the process that uses it, never before a fork.

    Raises:
        UnavailableError: no cluster answers there.
    """
    if ray.is_initialized():
        if alive():
            return
        log.warning("Ray cluster was lost; connecting again", extra={"address": address})
        ray.shutdown()
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise UnavailableError(f"no Ray cluster at {address}: {error}") from error


def alive() -> bool:
    """Return True if this process's cluster still answers and is still the same one.

    A restarted cluster has the old address and another id. The plain connection comes first, because Ray's own client
    waits most of a minute if nobody listens.
    """
    address = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        return is_same_cluster(address)
    except (OSError, RayError) as error:
        log.warning("Ray cluster does not answer: %s", error, extra={"address": address})
        return False
