"""A container engine for the test, and the images that it needs where none can be pulled.

A machine without a registry gets stand-ins of the same names: Debian with its own Python in place of the base image,
and on it the servers of PostgreSQL and Valkey that packages of PyPI bring.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

STANDINS = Path(__file__).parent / "standins"
BASE = "python:3.12-slim"
THIRD_PARTY = {"postgres:18": "postgres", "valkey/valkey:9": "valkey"}
"""The images that docker-compose.yml pulls without a profile, and the stand-ins for them."""
LABEL = "batchyard.standin"
LABELLED = f'{{{{index .Config.Labels "{LABEL}"}}}}'
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")


def docker(*arguments: str | Path, quiet: bool = False) -> str:
    """Run the client and return its output.

    Raises:
        subprocess.CalledProcessError: it failed; what it said is on standard error, unless `quiet`.
    """
    errors = subprocess.DEVNULL if quiet else None
    command = ["docker", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=errors, text=True).stdout.strip()


def succeeds(*arguments: str) -> bool:
    """Say whether the client, run with these arguments, succeeds."""
    return subprocess.run(["docker", *arguments], capture_output=True, check=False).returncode == 0


def cpu_seconds(container: str) -> float:
    """Return the CPU seconds of a container since it has run, its health checks included."""
    socket = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    with httpx.Client(transport=httpx.HTTPTransport(uds=socket), timeout=30) as engine:
        answer = engine.get(f"http://engine/containers/{container}/stats?stream=false&one-shot=true")
        return float(answer.raise_for_status().json()["cpu_stats"]["cpu_usage"]["total_usage"]) / 1e9


def _need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}: `apt-get install docker.io docker-compose debootstrap`")


def _iptables(*arguments: str) -> str:
    return subprocess.run(["iptables", *arguments], check=True, capture_output=True, text=True).stdout


@contextmanager
def running() -> Iterator[None]:
    """Have an engine: the one that runs, or one of our own, which ends with this context.

    Its images stay in BATCHYARD_TEST_IMAGES (/var/tmp/batchyard-images), so that the next run builds what is new.
    """
    if succeeds("info"):
        yield
        return
    _need("dockerd")
    images = os.environ.get("BATCHYARD_TEST_IMAGES", "/var/tmp/batchyard-images")
    with tempfile.TemporaryDirectory(prefix="by-engine-") as folder, Path(f"{images}.log").open("w") as log:
        socket = f"unix://{folder}/docker.sock"
        options = [f"--data-root={images}", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid", f"--host={socket}"]
        policy = _iptables("--list-rules", "FORWARD").splitlines()[0].split()
        daemon = subprocess.Popen(["dockerd", *options], stdout=log, stderr=log)
        os.environ["DOCKER_HOST"] = socket
        try:
            deadline = time.monotonic() + 180
            while not succeeds("info"):
                assert daemon.poll() is None and time.monotonic() < deadline, Path(log.name).read_text()
                time.sleep(0.2)
            yield
        finally:
            del os.environ["DOCKER_HOST"]
            helpers = psutil.Process(daemon.pid).children(recursive=True)
            daemon.terminate()
            daemon.wait(60)
            psutil.wait_procs(helpers, timeout=30)
            _iptables(*policy)  # the engine has set it to DROP, and leaves it so


@contextmanager
def pip_configuration() -> Iterator[Path]:
    """Write this machine's pip configuration for containers, which reach its folders over the engine's bridge."""
    listing = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
    settings = dict(re.findall(r"\.(index-url|extra-index-url|find-links|cert|timeout)='(.*)'", said))
    words = " ".join(settings.get(name, "") for name in ("index-url", "extra-index-url", "find-links")).split()
    folders = [word.removeprefix("file://") for word in words if word.startswith(("/", "file:///"))]
    with tempfile.TemporaryDirectory(prefix="by-pip-") as folder:
        if folders:
            root = os.path.commonpath([str(Path(path).parent) for path in folders])
            gateway = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}")
            handler = functools.partial(_Quiet, directory=root)
            server = http.server.ThreadingHTTPServer((gateway, 0), handler)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            for path in folders:
                served = f"http://{gateway}:{server.server_port}/{Path(path).relative_to(root)}/"
                settings = {
                    name: " ".join(served if word in (path, f"file://{path}") else word for word in value.split())
                    for name, value in settings.items()
                }
            settings["trusted-host"] = gateway
        file = Path(folder) / "pip.conf"
        file.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
        try:
            yield file
        finally:
            if folders:
                server.shutdown()
                server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def provide_images(pip: Path) -> list[str]:
    """Pull what docker-compose.yml needs of others, or make stand-ins. Return the names of the stand-ins."""
    made = []
    for name, standin in {BASE: "", **THIRD_PARTY}.items():
        there = succeeds("image", "inspect", name)
        earlier = there and docker("image", "inspect", name, "--format", LABELLED) == "yes"
        if not earlier and (there or succeeds("pull", "--quiet", name)):
            continue
        made.append(name)
        if standin or not earlier:  # one of an earlier run may be old: layers that are the same are not made again
            _make(name, standin, pip)
    return made


def _make(name: str, standin: str, pip: Path) -> None:
    label = f"{LABEL}=yes"
    if standin:
        options = ["--tag", name, "--label", label, "--secret", f"id=pip,src={pip}", "--quiet"]
        docker("build", *options, "--file", STANDINS / f"{standin}.dockerfile", STANDINS)
        return
    _need("debootstrap")
    with tempfile.TemporaryDirectory(prefix="by-base-") as folder:
        bootstrap = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, folder]
        subprocess.run(bootstrap, check=True, stdout=subprocess.DEVNULL)
        root = Path(folder)
        (root / "usr/bin/python").symlink_to("python3")
        (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink(missing_ok=True)
        (root / AUTHORITIES.relative_to("/")).write_bytes(AUTHORITIES.read_bytes())
        with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as tree:
            importing = ["docker", "import", "--change", f"LABEL {label}", "-", name]
            subprocess.run(importing, check=True, stdin=tree.stdout, stdout=subprocess.DEVNULL)
