"""The processes of a local stack: command lines, environments, when each is ready, and how it ends."""

import os
import signal
from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import SecretStr

from batchyard import proxies
from batchyard.local import ports, programs, ray_head, services
from batchyard.local.data_folder import DataFolder
from batchyard.local.fork_server import ForkServer
from batchyard.local.process import ChildProcess
from batchyard.settings import Settings, environment_name

_RAY = {
    # Without it Ray takes 127.0.0.1 for this machine's outward address, and listens there.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ROTATION_MAX_BYTES": str(16 * 1024 * 1024),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1",
    # Ray's process titles would overwrite the environment, by which `process.tagged` finds them.
    "SPT_NOENV": "1",
}
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
        **_RAY,
    }
    if "ray_address" not in explicit:  # whoever reaches Ray can run code, and every user of this machine does
        environment |= folder.ray_access()
    children: dict[str, ChildProcess] = {}

    def add(name: str, argv: list[str], variables: Mapping[str, str] | None = None, **options: Any) -> None:
        children[name] = ChildProcess(
            name,
            argv,
            {**environment, **(variables or {})},
            tag=f"{folder.path}#{name}",
            log=folder.logs / f"{name}.log",
            pid_file=folder.run / f"{name}.pid",
            **options,
        )

    if "redis_url" not in explicit:
        ready = partial(programs.pong, socket_path)
        add("redis", programs.redis(socket_path), ready=ready, folder=folder.redis)
    if "ray_address" not in explicit:
        ready = partial(programs.accepts, folder.ray / "session_latest/sockets/raylet")
        hook = {"RAY_START_HOOK": ray_head.START_HOOK}
        # Engines would take long to end, and have nothing to lose.
        add("ray", programs.ray(folder.ray, numbers["ray"]), hook, ready=ready, grace=1.0, nice=5)
    # Stacks that share a broker need different names of nodes.
    suffix = f"-{folder.name}" if "redis_url" in explicit else ""
    # Celery would wait for a broker that is gone. Gateway and web app go first; hours of work take no longer for it.
    celery: dict[str, Any] = {"grace": 9.0, "orphan_signal": signal.SIGKILL, "nice": 5}
    add("worker", services.worker(settings, f"worker{suffix}"), **celery)
    for name, command in (("housekeeper", services.housekeeper), ("webhooks", services.webhooks)):
        # By this signal its tasks end, but within seconds.
        add(name, command(settings, f"{name}{suffix}"), end_signal=signal.SIGQUIT, **celery)
    add("beat", services.beat(settings, folder.run / "beat-schedule"))
    password = {"FLOWER_BASIC_AUTH": folder.flower_password()}
    # A view: a start is not to wait for its imports, nor work for its events.
    add("flower", services.flower("127.0.0.1", numbers["flower"]), password, nice=10)
    web, port = folder.short / "web.sock", numbers["web"]
    behind_gateway = services.behind_gateway(settings)
    add("web", services.web_at(f"unix:{web}"), behind_gateway, ready=partial(programs.accepts, web))
    answers = partial(ports.answers, reached_at(host), port)
    add("gateway", services.gateway(host, port, f"unix:{web}"), ready=answers)
    for name in children.keys() - {"redis", "ray"}:
        children[name].fork_server = forks
    return children


def reached_at(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on `host`."""
    return _LOCAL.get(host, host)
