"""The command lines of Batchyard's own services, for the local stack and for docker-compose.yml alike.

    python -m batchyard.local.services web --host=0.0.0.0 --port=8000

becomes that service, as the settings configure it. The process is replaced, so signals reach Celery and gunicorn.
Ray's nodes are not here: the local stack's head (`programs.ray`) serves one machine, those of the compose file a
cluster.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from batchyard import proxies, queues
from batchyard.errors import ConfigurationError
from batchyard.settings import Settings, environment_name, load

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # The processes that call engines stay for the next segment: a new one takes 2 s of CPU. Processes beyond one for
    # each free CPU end soon: each has 240 MB, and without work takes 0.8 % of a CPU.
    "RAY_idle_worker_killing_time_threshold_ms": "60000",
    # Ray's default, 15, leaves engines 3 % of a CPU that something else keeps busy: their requests time out.
    "RAY_worker_niceness": "0",
}
"""The environment of every Ray node and driver, beside who may join; docker-compose.yml repeats it."""
OWN_CLUSTER = "auto"
"""The address that names no Ray cluster."""
_ROOT = Path(__file__).parents[2]
"""The folder that our packages are in: the tree, or that of installed packages."""
_CELERY = [sys.executable, "-m", "celery", "-A", "tasks.app"]
_WITHOUT_TASKS = [sys.executable, "-m", "celery", "-A", "tasks.celery_app"]
# glibc gives each thread a heap that keeps the most it ever held, and puts ever larger blocks there, between which
# small ones stay: hundreds of MiB, for threads that advance jobs. Two heaps, and larger blocks apart, which go back
# when freed.
HEAPS = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
_THREADS = ["env", *(f"{name}={value}" for name, value in HEAPS.items()), *_CELERY, "worker", "--pool=threads"]
# Leases coordinate workers: their gossip and their exchange of clocks at the start would be traffic for nothing.
# Flower takes a worker for dead after two of its heartbeats, which are events: every 2 s by default.
_WORKER = ["--prefetch-multiplier=1", "--without-gossip", "--without-mingle", "--heartbeat-interval=10"]


def import_path() -> dict[str, str]:
    """Return the environment in which a service finds our packages, not a user's tasks.py in the folder where it runs.

    Celery and gunicorn put that folder first unless it is in the path.
    """
    folders = [str(_ROOT), str(Path.cwd()), os.environ.get("PYTHONPATH")]
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def worker(settings: Settings, node: str = "worker-%h") -> list[str]:
    """The worker that runs segments, as the Celery node `node`: threads of one process, which joins Ray."""
    return _worker(_THREADS, settings, node, queues.segment_threads(settings.max_segments), queues.BATCHES)


def housekeeper(settings: Settings, node: str = "housekeeper-%h") -> list[str]:
    """The worker that validates and finishes batches and keeps house, as the Celery node `node`. It needs no Ray."""
    concurrency = queues.housekeeper_processes(settings.max_segments)
    return _worker([*_CELERY, "worker"], settings, node, concurrency, *queues.HOUSEKEEPER)


def webhooks(settings: Settings, node: str = "webhooks-%h") -> list[str]:
    """The worker that delivers to webhooks and advances jobs, as the Celery node `node`. It needs no Ray."""
    return _worker(_THREADS, settings, node, queues.WEBHOOK_THREADS + queues.JOB_THREADS, *queues.WAITING)


def _worker(program: list[str], settings: Settings, node: str, concurrency: int, *names: str) -> list[str]:
    """Return a worker's command line. Celery replaces %h in `node` by the host's name. `names`: of its queues."""
    name = f"--hostname={node}@{settings.name}"
    options = [name, f"--concurrency={concurrency}", f"--queues={','.join(names)}"]
    return [*program, *options, *_WORKER, _log_level(settings)]


def beat(settings: Settings, schedule: Path | None = None) -> list[str]:
    """Celery beat, which keeps its state in the file `schedule`; `beat-schedule` in the data folder if None."""
    return [*_WITHOUT_TASKS, "beat", f"--schedule={schedule or settings.data / 'beat-schedule'}", _log_level(settings)]


def flower(host: str, port: int) -> list[str]:
    """Flower, behind the password of FLOWER_BASIC_AUTH."""
    return [*_WITHOUT_TASKS, "flower", f"--address={host}", f"--port={port}", "--max-tasks=10000"]


def gateway(host: str, port: int, web_url: str) -> list[str]:
    """The gateway: live requests, and the way to the web app at `web_url` (`http://host:port` or `unix:/path`)."""
    return [sys.executable, "-m", "webapp.gateway.server", f"--host={host}", f"--port={port}", f"--web={web_url}"]


def web(host: str, port: int) -> list[str]:
    """The web app in gunicorn, at an address."""
    return web_at(proxies.address(host, port))


def behind_gateway(settings: Settings) -> dict[str, str]:
    """The environment of a web app that the gateway passes requests on to: it adds the client's address to them."""
    return {environment_name("proxies"): str(settings.proxies + 1), environment_name("behind_gateway"): "true"}


def web_at(bind: str) -> list[str]:
    """The web app in gunicorn, at an address or at `unix:/path`."""
    options = [
        f"--bind={bind}",
        "--worker-class=gthread",
        "--workers=1",  # so that /metrics counts everything
        "--config=python:batchyard.local.web_server",
        f"--threads={queues.WEB_THREADS}",  # gthread's timeout is that of its heartbeat, not of an upload
        # Shorter than `batchyard up` (5 s) and Docker (10 s) wait before they kill.
        "--graceful-timeout=3",
        # Clients that poll every few seconds need not connect each time.
        "--keep-alive=60",
        "--no-control-socket",
    ]
    return [sys.executable, "-m", "gunicorn", *options, "webapp:create_app()"]


def _log_level(settings: Settings) -> str:
    return f"--loglevel={settings.log_level.upper()}"


_CONFIGURED: Mapping[str, Callable[[Settings], list[str]]] = {
    "worker": worker,
    "housekeeper": housekeeper,
    "webhooks": webhooks,
    "beat": beat,
}
_LISTENING: Mapping[str, Callable[[str, int], list[str]]] = {"web": web, "flower": flower}


def main() -> None:
    """Replace this process with the service that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m batchyard.local.services", description="Become one service of a deployment."
    )
    names = parser.add_subparsers(dest="name", required=True)
    address = argparse.ArgumentParser(add_help=False)
    address.add_argument("--host", default="127.0.0.1", help="address to listen on")
    address.add_argument("--port", type=int, required=True, help="port to listen on")
    for name in _CONFIGURED:
        names.add_parser(name)
    for name in _LISTENING:
        names.add_parser(name, parents=[address])
    names.choices["web"].add_argument(
        "--behind-gateway", action="store_true", help="one proxy more than BATCHYARD_PROXIES says is before it"
    )
    through = names.add_parser("gateway", parents=[address])
    through.add_argument("--web", required=True, help="the web app: http://host:port, or unix:/path of its socket")
    options = parser.parse_args()
    if options.name == "gateway":
        argv = gateway(options.host, options.port, options.web)
    elif options.name in _LISTENING:
        argv = _LISTENING[options.name](options.host, options.port)
    else:
        argv = _CONFIGURED[options.name](_settings(parser))
    if options.name == "worker":
        try:
            check_cluster(_settings(parser).ray_address)
        except ConfigurationError as error:
            parser.exit(2, f"batchyard: {error.message}\n")
    if options.name == "web" and options.behind_gateway:
        os.environ |= behind_gateway(_settings(parser))
    os.environ |= import_path()
    os.execvp(argv[0], argv)


def check_cluster(address: str) -> None:
    """Raise ConfigurationError if no worker could join the Ray cluster at `address`. OWN_CLUSTER names none."""
    if address == OWN_CLUSTER:
        return
    from inference.ray import cluster

    cluster.check_versions(address)


def _settings(parser: argparse.ArgumentParser) -> Settings:
    try:
        return load()
    except ConfigurationError as error:
        parser.exit(2, f"batchyard: {error.message}\n")


if __name__ == "__main__":
    main()
