"""The connection of this process to the Ray cluster, opened on first use."""

import logging
import os
import platform
import socket
import threading
from pathlib import Path

import ray
from ray.exceptions import RayError

import batchyard
import inference
from batchyard.errors import ConfigurationError, EngineStartError, Stopped, UnavailableError
from inference.ray_internals import OwnPath, is_same_cluster, version_mismatch
from inference.residents.directory import NAMESPACE

LOOK_SECONDS = 1.0
"""Between two looks whether a lost cluster answers again."""

SHIPPED = (batchyard, inference)
"""The packages that engines and their callers import on a node. Whatever these import has to be installed there."""

log = logging.getLogger(__name__)
_connecting = threading.Lock()


def check_versions(address: str) -> None:
    """Compare this process's Python and Ray with those of the cluster at `address` (`host:port`).

    It says nothing of a cluster that is away. It needs no node on this machine, and starts nothing.
    """
    try:
        _knock(address)
        _refuse_others(address)
    except (OSError, ValueError, RayError) as error:
        log.warning("versions of the Ray cluster not compared: %s", error, extra={"address": address})


def _refuse_others(address: str) -> None:
    """Raise ConfigurationError if the cluster has another Python or Ray, RayError if it does not answer."""
    theirs = version_mismatch(address)
    if theirs is not None:
        raise ConfigurationError(
            f"RAY_ADDRESS={address}: the cluster has {theirs}; here are Python {platform.python_version()} and Ray "
            f"{ray.__version__}, and only equal versions understand each other. Install the cluster's versions here, "
            "or start the cluster with these"
        )


def connect(address: str, stopped: threading.Event, *, ship_code: bool = False) -> None:
    """Connect this process to the cluster at `address` (`host:port`, or `auto`) as a driver, once in its life.

    Call it in the process that uses it, never before a fork. A cluster that was joined and does not answer is waited
    for, without end: calls of other threads into it never return, so only a new process can join another one.

    `ship_code`: send SHIPPED to the nodes, which may have none or other ones. Ray does it once for each content.

    Raises:
        Stopped: `stopped` is set.
        UnavailableError: no cluster answers there.
        EngineStartError: the cluster has another Python or Ray.
    """
    with _connecting:
        if not ray.is_initialized():
            _join(address, ship_code)
            return
    while not alive():
        if stopped.wait(LOOK_SECONDS):
            raise Stopped


def _join(address: str, ship_code: bool = False) -> None:
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    modules = {"py_modules": [str(Path(package.__path__[0])) for package in SHIPPED]}
    try:
        if address != "auto":
            _knock(address)
            _refuse_others(address)  # before Ray does, which would leave half a connection in this process
        ray.init(
            address=address,
            namespace=NAMESPACE,
            job_config=OwnPath(),
            runtime_env=modules if ship_code else None,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except ConfigurationError as error:
        # A new worker ends with it. Here a model goes on hold, and says why.
        raise EngineStartError(error.message) from error
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise UnavailableError(f"no Ray cluster at {address}: {error}") from error


def alive() -> bool:
    """Return True if this process's cluster answers. A new one at its address has another id."""
    address = ray.get_runtime_context().gcs_address
    try:
        _knock(address)
        return is_same_cluster(address)
    except (OSError, RayError) as error:
        log.warning("Ray cluster does not answer: %s", error, extra={"address": address})
        return False


def _knock(address: str) -> None:
    """Connect to `host:port` before Ray's client, which waits for minutes. Raises OSError if nobody listens."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
