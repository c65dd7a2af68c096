"""The processes of a local stack: command lines, environments, when each is ready, and how it ends."""

import os
import signal
from collections.abc import Callable, Mapping
from functools import partial

from pydantic import SecretStr

from batchyard import proxies
from batchyard.local import ports, programs, ray_head, services
from batchyard.local.data_folder import DataFolder
from batchyard.local.fork_server import ForkServer
from batchyard.local.process import ChildProcess
from batchyard.settings import Settings, environment_name

_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def of(
    settings: Settings,
    folder: DataFolder,
    host: str,
    numbers: Mapping[str, int],
    forks: ForkServer | None = None,
) -> dict[str, ChildProcess]:
    """Return the processes of a stack by name, in the order of their start; none runs yet.

    Args:
        host: where the gateway listens.
        numbers: the ports of the gateway (`web`), Flower and Ray.
        forks: forks our own services; each is a program of its own if None.
    """
    explicit = settings.model_fields_set
    socket_path = folder.short / "redis.sock"
    redis_url = settings.redis_url if "redis_url" in explicit else f"unix://{socket_path}"
    ray_address = settings.ray_address if "ray_address" in explicit else f"127.0.0.1:{numbers['ray']}"
    values = {
        field: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        for field, value in settings.model_dump(include=explicit).items()
    }
    values |= {"data": str(folder.path), "models": str(settings.models.resolve())}
    values |= {"database_url": settings.database, "artifacts_url": settings.artifacts}
    values |= {"redis_url": redis_url, "ray_address": ray_address}
    environment = {
        **os.environ,
        **{environment_name(field): value for field, value in values.items()},
        "PYTHONUNBUFFERED": "1",
        **proxies.sparing(os.environ),
        **services.import_path(),
        **services.RAY_ENVIRONMENT,
        # Without it Ray takes 127.0.0.1 for this machine's outward address, and listens there.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_ROTATION_MAX_BYTES": str(16 * 1024 * 1024),
        "RAY_ROTATION_BACKUP_COUNT": "1",
        "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1",
        # Ray's process titles would overwrite the environment, by which `process.tagged` finds them.
        "SPT_NOENV": "1",
    }
    if "ray_address" not in explicit:  # whoever reaches Ray can run code, and every user of this machine does
        environment |= folder.ray_access()
    make = partial(_child, folder, environment)
    children = {}
    if "redis_url" not in explicit:
        children["redis"] = make("redis", programs.redis(socket_path), ready=partial(programs.pong, socket_path))
        children["redis"].folder = folder.redis
    if "ray_address" not in explicit:
        # Engines would take long to end, and have nothing to lose.
        children["ray"] = make("ray", programs.ray(folder.ray, numbers["ray"]), grace=1.0)
        children["ray"].environment = {**environment, "RAY_START_HOOK": ray_head.START_HOOK}
        children["ray"].ready = partial(programs.accepts, folder.ray / "session_latest/sockets/raylet")
    # Stacks that share a broker need different names of nodes.
    suffix = f"-{folder.name}" if "redis_url" in explicit else ""
    children["worker"] = make("worker", services.worker(settings, f"worker{suffix}"), grace=9.0)
    for name, command in (("housekeeper", services.housekeeper), ("webhooks", services.webhooks)):
        children[name] = make(name, command(settings, f"{name}{suffix}"), grace=9.0)
        children[name].end_signal = signal.SIGQUIT  # its tasks end, but within seconds
    for name in ("worker", "housekeeper", "webhooks"):
        children[name].orphan_signal = signal.SIGKILL  # Celery would wait for a broker that is gone
    for name in children.keys() & {"worker", "housekeeper", "webhooks", "ray"}:
        children[name].nice = 5  # gateway and web app go first; hours of work take no longer for it
    children["beat"] = make("beat", services.beat(settings, folder.run / "beat-schedule"))
    children["flower"] = make("flower", services.flower("127.0.0.1", numbers["flower"]))
    children["flower"].environment = {**environment, "FLOWER_BASIC_AUTH": folder.flower_password()}
    children["flower"].nice = 10  # a view: a start is not to wait for its imports, nor work for its events
    web_socket = folder.short / "web.sock"
    children["web"] = make("web", services.web_at(f"unix:{web_socket}"), ready=partial(programs.accepts, web_socket))
    children["web"].environment = {**environment, **services.behind_gateway(settings)}
    gateway = partial(ports.answers, reached_at(host), numbers["web"])
    children["gateway"] = make("gateway", services.gateway(host, numbers["web"], f"unix:{web_socket}"), ready=gateway)
    for name in children.keys() - {"redis", "ray"}:
        children[name].fork_server = forks
    return children


def reached_at(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on `host`."""
    return _LOCAL.get(host, host)


def _child(
    folder: DataFolder,
    environment: dict[str, str],
    name: str,
    argv: list[str],
    *,
    ready: Callable[[], bool] = lambda: True,
    grace: float = 5.0,
) -> ChildProcess:
    return ChildProcess(
        name,
        argv,
        environment,
        tag=f"{folder.path}#{name}",
        log=folder.logs / f"{name}.log",
        pid_file=folder.run / f"{name}.pid",
        ready=ready,
        grace=grace,
    )
