"""The connection of this process to the Ray cluster, opened on first use."""

from __future__ import annotations

import logging
import os
import socket
import threading

import ray
from ray.exceptions import RayError

from batchyard.errors import Stopped, UnavailableError
from inference.ray_internals import OwnPath, is_same_cluster
from inference.residents.directory import NAMESPACE

LOOK_SECONDS = 1.0
"""Between two looks whether a lost cluster answers again."""

log = logging.getLogger(__name__)
_connecting = threading.Lock()


def connect(address: str, stopped: threading.Event) -> None:
    """Connect this process to the cluster at `address` (`host:port`, or `auto`) as a driver, once in its life.

    Call it in the process that uses it, never before a fork. A cluster that was joined and does not answer is waited
    for, without end: calls of other threads into it never return, so only a new process can join another one.

    Raises:
        Stopped: `stopped` is set.
        UnavailableError: no cluster answers there.
    """
    with _connecting:
        if not ray.is_initialized():
            _join(address)
            return
    while not alive():
        if stopped.wait(LOOK_SECONDS):
            raise Stopped


def _join(address: str) -> None:
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    try:
        if address != "auto":
            _knock(address)
        ray.init(
            address=address,
            namespace=NAMESPACE,
            job_config=OwnPath(),
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise UnavailableError(f"no Ray cluster at {address}: {error}") from error


def alive() -> bool:
    """Return True if this process's cluster still answers and is still the same one.

    A restarted cluster has the old address and another id.
    """
    address = ray.get_runtime_context().gcs_address
    try:
        _knock(address)
        return is_same_cluster(address)
    except (OSError, RayError) as error:
        log.warning("Ray cluster does not answer: %s", error, extra={"address": address})
        return False


def _knock(address: str) -> None:
    """Open a plain connection to `host:port`, and close it.

    It comes before Ray's client, which waits for minutes if nobody listens.

    Raises:
        OSError: nobody listens there.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=5).close()
